// Adam's arithmetic, once, for one element. Every line is one IEEE operation or an explicit fma, in
// the order of docs/numerics.md, "Adam": that order is what makes CPU and GPU agree in every bit.
#pragma once

#include "runtime/numeric/float_bits.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

struct AdamElement {
  float parameter, exp_avg, exp_avg_sq;
};

// The master of a parameter that has its value rounded: the parameter's, if that was written to.
template <class Type>
NC_EVERYWHERE float following(float master, Type parameter) {
  const float present = widen(parameter);
  return widen(narrow<Type>(master)) == present ? master : present;
}

NC_EVERYWHERE AdamElement adam(AdamElement x, float grad, const nc_step& step) {
  const float p = x.parameter;
  const float scaled = step.scaled ? grad * step.grad_multiplier : grad;
  const float g = step.decoupled ? scaled : fused_multiply_add(step.weight_decay, p, scaled);
  const float m = fused_multiply_add(step.beta1, x.exp_avg, step.one_minus_beta1 * g);
  const float v = fused_multiply_add(step.beta2, x.exp_avg_sq, (step.one_minus_beta2 * g) * g);
  const float denominator = square_root(v * step.rcp_bias2) + step.epsilon;
  const float u = (m * step.rcp_bias1) / denominator;
  const float decayed = step.decoupled ? fused_multiply_add(step.weight_decay, p, u) : u;
  return {fused_multiply_add(-step.learning_rate, decayed, p), m, v};
}

}  // namespace narrowcast::inline NC_VARIANT
