#include "runtime/optimizer/step.hpp"

#include <cstring>

#include "runtime/launch/cpu_entry.hpp"

namespace narrowcast {
namespace {

// A function of its own, so that no compiler moves arithmetic out of the mode that its caller sets.
template <class Rule>
[[gnu::noinline]] nc_step step_of(const typename Rule::Options& options, int64_t t,
                                  double grad_scale) {
  nc_step step{};
  step.t = t;
  step.grad_multiplier = narrowed(1 / grad_scale);
  const typename Rule::Constants constants = Rule::at_step(options, t);
  std::memcpy(step.constants, &constants, sizeof(constants));
  return step;
}

}  // namespace

nc_step make_step(const AdamW::Options& options, int64_t t, double grad_scale) {
  const IeeeArithmetic mode;
  return step_of<AdamW>(options, t, grad_scale);
}

}  // namespace narrowcast
