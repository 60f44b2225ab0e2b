// The sample behind the errors on the pages. tests/python/docs/test_format_pages.py makes it a
// second time, with the logarithm of numpy.
#include <doctest/doctest.h>

#include <cmath>

#include "codegen/accuracy.hpp"
#include "codegen/gaussian.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

TEST_CASE("the logarithm is that of the mathematical library, to a few last places") {
  for (double x = 0x1p-70; x < 0x1p20; x *= 1.00371) {
    CAPTURE(x);
    CHECK(std::fabs(logarithm(x) - std::log(x)) <= 4e-16 * std::max(1.0, std::fabs(std::log(x))));
  }
  CHECK(logarithm(1) == 0);
}

TEST_CASE("the sample has the moments and the tails of a standard normal") {
  constexpr int kCount = 1 << 16;
  double sum = 0, square = 0, fourth = 0;
  int beyond_two = 0;
  for (const float x : gaussian_sample(kCount)) {
    const double y = x;
    sum += y;
    square += y * y;
    fourth += y * y * y * y;
    beyond_two += std::fabs(y) > 2;
  }
  CHECK(std::fabs(sum / kCount) < 0.012);  // three standard errors, each
  CHECK(std::fabs(square / kCount - 1) < 0.017);
  CHECK(std::fabs(fourth / kCount - 3) < 0.115);
  CHECK(std::fabs(1.0 * beyond_two / kCount - 0.0455) < 0.0025);
}

TEST_CASE("a longer sample begins with the shorter one") {
  const std::vector<float> longer = gaussian_sample(101), shorter = gaussian_sample(100);
  CHECK(std::vector<float>(longer.begin(), longer.end() - 1) == shorter);
}

TEST_CASE("more bits lose less, and equal blocks lose the same in both usages") {
  const auto error = [](const char* name) {
    const Plan plan = plan_of(name);
    return relative_error(plan, plan.rowwise);
  };
  CHECK(error("mxfp8_e4m3") < error("mxfp6_e3m2"));
  CHECK(error("mxfp6_e2m3") < error("mxfp4"));
  const Plan square = plan_of("nvfp4");
  CHECK(relative_error(square, square.rowwise) == relative_error(square, square.columnwise));
}

}  // namespace
}  // namespace narrowcast::codegen::test
