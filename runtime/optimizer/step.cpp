#include "runtime/optimizer/step.hpp"

#include "runtime/launch/cpu_entry.hpp"

namespace narrowcast {

namespace {

// A function of its own, so that no compiler moves arithmetic out of the mode that its caller sets.
[[gnu::noinline]] nc_step step_of(const nc_update_rule& rule, const double* options, int64_t t,
                                  double grad_scale) {
  nc_step step{};
  step.t = t;
  step.grad_multiplier = static_cast<float>(1 / grad_scale);
  rule.at_step(options, t, step.constants);
  return step;
}

}  // namespace

nc_step make_step(const nc_update_rule& rule, std::span<const double> options, int64_t t,
                  double grad_scale) {
  const IeeeArithmetic mode;
  return step_of(rule, options.data(), t, grad_scale);
}

}  // namespace narrowcast
