#include "codegen/accuracy.hpp"

#include <cmath>
#include <vector>

#include "codegen/gaussian.hpp"
#include "codegen/golden.hpp"

namespace narrowcast::codegen {

double relative_error(const Plan& plan, const nc_layout& usage) {
  constexpr int64_t kSide = 256;
  static const std::vector<float> kValues = gaussian_sample(kSide * kSide);
  const std::vector<float> kept = golden_decoded(plan, usage, kSide, kValues);
  double noise = 0, signal = 0;
  for (size_t i = 0; i < kValues.size(); ++i) {
    const double x = kValues[i], error = kept[i] - x;
    noise += error * error;
    signal += x * x;
  }
  return std::sqrt(noise / signal);
}

}  // namespace narrowcast::codegen
