#include "codegen/gaussian.hpp"

#include <bit>
#include <cmath>

#include "runtime/golden/matrix.hpp"

namespace narrowcast::codegen {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;

// Uniform over (-1, 1), symmetric, never 0.
double coordinate(uint32_t counter) {
  return (golden::scrambled(counter) + 0.5) / 2147483648.0 - 1.0;
}

}  // namespace

// x = m 2^e with m around 1, and ln m = 2 artanh(t), t = (m - 1) / (m + 1), as a power series:
// |t| < 0.172, so t^25 no longer counts.
double logarithm(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > kSqrt2) {
    m /= 2;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1), square = t * t;
  double series = 0;
  for (int power = 23; power >= 1; power -= 2) series = series * square + 1.0 / power;
  return exponent * kLn2 + 2 * t * series;
}

std::vector<float> gaussian_sample(int64_t count) {
  const auto wanted = static_cast<size_t>(count);
  std::vector<float> sample;
  for (uint32_t i = 0; sample.size() < wanted; ++i) {
    const double u = coordinate(2 * i + 1), v = coordinate(2 * i + 2), s = u * u + v * v;
    if (s >= 1) continue;
    const double factor = std::sqrt(-2 * logarithm(s) / s);
    for (const double x : {u, v}) {
      if (sample.size() < wanted) sample.push_back(static_cast<float>(x * factor));
    }
  }
  return sample;
}

}  // namespace narrowcast::codegen
