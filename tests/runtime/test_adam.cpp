// Adam's order of operations, bit for bit: the golden values of docs/numerics.md, and the
// unquantized update through its table.
#include <doctest/doctest.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/launch/plan.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/optimizer/plain.hpp"
#include "runtime/rules/adamw.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

struct AdamElement {
  float parameter, state[2];
};

AdamElement adam(AdamElement x, float grad, const nc_step& step) {
  x.parameter = updated<adamw::Rule>(x.parameter, grad, x.state, step);
  return x;
}

void check_golden(AdamElement x, float grad, const std::array<double, 6>& options, int64_t t,
                  uint32_t p, uint32_t m, uint32_t v) {
  const AdamElement next = adam(x, grad, adamw_step(options, t));
  CHECK(bits_of(next.parameter) == p);
  CHECK(bits_of(next.state[0]) == m);
  CHECK(bits_of(next.state[1]) == v);
}

TEST_CASE("a caller's rounding mode changes no constant") {
  const std::array<double, 6> options{1e-3, 0.9, 0.95, 1e-8, 0.1, true};
  for (const int64_t t : {1, 2, 7, 1000}) {
    const nc_step expected = adamw_step(options, t, 3.0);
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      REQUIRE(std::fesetround(mode) == 0);
      const nc_step step = adamw_step(options, t, 3.0);
      const int left = std::fegetround();
      std::fesetround(FE_TONEAREST);
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are compared, of floats too
      CHECK(std::memcmp(&step, &expected, sizeof(step)) == 0);
      CHECK(left == mode);
    }
  }
}

TEST_CASE("golden updates") {
  const AdamElement x{0.02f, {0.001f, 1e-6f}};
  check_golden(x, 0.003f, {1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 7, 0x3c9b13b3, 0x3a9d4952,
               0x35bbe7a2);
  check_golden(x, 0.003f, {1e-3, 0.9, 0.95, 1e-8, 0.1, false}, 7, 0x3c9bb31d, 0x3ab78035,
               0x3613a3b7);
  check_golden({0.02f, {0, 0}}, 0.003f, {1e-3, 0.9, 0.999, 1e-8, 0.1, true}, 1, 0x3c9ba1b3,
               0x399d4952, 0x321a9e6c);
}

TEST_CASE("powers are products by squaring") {
  CHECK(power(0.9, 0) == 1);
  CHECK(power(0.9, 1) == 0.9);
  CHECK(power(0.5, 10) == 0x1p-10);
  CHECK(power(0.9, 5) == 0.9 * (((0.9 * 0.9) * (0.9 * 0.9))));
}

TEST_CASE("eps 0 and no squares give NaN, as IEEE says") {
  const AdamElement next = adam({1, {0, 0}}, 0, adamw_step({1e-3, 0.9, 0.95, 0, 0, true}, 1));
  CHECK(std::isnan(next.parameter));
}

TEST_CASE(
    "unquantized parameters: each element as the formula, a rounded copy and writes to it, any "
    "size") {
  const nc_machine& machine = *plain_plugin().cpu;
  for (const int64_t n : {1, 555, 7777, 65535, 65536, 65537}) {
    CAPTURE(n);
    std::vector<float> master = draw(Kind::kOrdinary, n, 1), exp_avg = draw(Kind::kOrdinary, n, 2),
                       exp_avg_sq = exp_avg;
    for (float& value : exp_avg_sq) value *= value;
    std::vector<Bf16> grad, parameter;
    for (float value : draw(Kind::kOrdinary, n, 3)) grad.push_back(narrow<Bf16>(value));
    for (float value : master) parameter.push_back(narrow<Bf16>(value));
    parameter[n / 2] = narrow<Bf16>(7.0f);  // written to since the last step
    nc_step step = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 3);
    step.grad = grad.data();
    step.grad_dtype = NC_BF16;
    std::vector<AdamElement> expected;
    for (int64_t i = 0; i < n; ++i) {
      const float value = i == n / 2 ? 7.0f : master[i];
      expected.push_back(adam({value, {exp_avg[i], exp_avg_sq[i]}}, widen(grad[i]), step));
    }
    nc_tensor tensor = tensor_of({1, n});
    tensor.value = master.data();
    tensor.state[0] = exp_avg.data();
    tensor.state[1] = exp_avg_sq.data();
    tensor.buffer[0] = parameter.data();
    tensor.value_dtype = NC_BF16;
    const nc_launch launch = launch_of(machine, &tensor, 1, &step);
    REQUIRE(adamw_of(machine).update(&launch) == nullptr);
    int wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      wrong += bits_of(master[i]) != bits_of(expected[i].parameter) ||
               bits_of(exp_avg[i]) != bits_of(expected[i].state[0]) ||
               bits_of(exp_avg_sq[i]) != bits_of(expected[i].state[1]) ||
               parameter[i].bits != narrow<Bf16>(expected[i].parameter).bits;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("found_inf and a missing gradient change nothing") {
  const nc_machine& machine = *plain_plugin().cpu;
  std::vector<float> master(100, 1.0f), exp_avg(100, 0.5f), exp_avg_sq(100, 0.25f), grad(100, 1.0f);
  nc_tensor tensor = tensor_of({1, 100});
  tensor.value = master.data();
  tensor.state[0] = exp_avg.data();
  tensor.state[1] = exp_avg_sq.data();
  nc_step step = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 1);
  nc_launch launch = launch_of(machine, &tensor, 1, &step);
  REQUIRE(adamw_of(machine).update(&launch) == nullptr);
  CHECK(master == std::vector<float>(100, 1.0f));
  step.grad = grad.data();
  const float found = 1;
  launch.found_inf = &found;
  REQUIRE(adamw_of(machine).update(&launch) == nullptr);
  CHECK(master == std::vector<float>(100, 1.0f));
  CHECK(exp_avg == std::vector<float>(100, 0.5f));
  launch.found_inf = nullptr;
  REQUIRE(adamw_of(machine).update(&launch) == nullptr);
  CHECK(master[0] != 1.0f);
}

}  // namespace
}  // namespace narrowcast::test
