#include "runtime/optimizer/step.hpp"

#include "runtime/launch/cpu_entry.hpp"

namespace narrowcast {

double power(double beta, int64_t t) {
  double result = 1;
  for (; t > 0; t >>= 1) {
    if (t & 1) result *= beta;
    beta *= beta;
  }
  return result;
}

namespace {

// A function of its own, so that no compiler moves arithmetic out of the mode that its caller sets.
[[gnu::noinline]] nc_step constants(const AdamOptions& options, int64_t t) {
  nc_step step{};
  step.t = t;
  step.decoupled = options.decoupled;
  step.beta1 = static_cast<float>(options.beta1);
  step.beta2 = static_cast<float>(options.beta2);
  step.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  step.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  step.rcp_bias1 = static_cast<float>(1 / (1 - power(options.beta1, t)));
  step.rcp_bias2 = static_cast<float>(1 / (1 - power(options.beta2, t)));
  step.learning_rate = static_cast<float>(options.learning_rate);
  step.epsilon = static_cast<float>(options.epsilon);
  step.weight_decay = static_cast<float>(options.weight_decay);
  step.grad_multiplier = static_cast<float>(1 / options.grad_scale);
  return step;
}

}  // namespace

nc_step make_step(const AdamOptions& options, int64_t t) {
  const IeeeArithmetic mode;
  return constants(options, t);
}

}  // namespace narrowcast
