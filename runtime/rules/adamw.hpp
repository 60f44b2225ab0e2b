// AdamW, and Adam, whose weight decay is an L2 term. Every line of the update is one IEEE operation
// or an explicit fma, in the order of docs/numerics.md, "Adam": that order is what makes CPU and
// GPU agree in every bit.
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT::adamw {

struct Rule {
  static constexpr const char* kName = "adamw";
  static constexpr int kStates = 2;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq", nullptr};
  static constexpr int32_t kNonnegative[] = {0, 1};
  static constexpr const char* kOptionNames[] = {
      "lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "bias_correction", nullptr};
  struct Options {
    double lr, beta1, beta2, eps, weight_decay;
    double decoupled;        // 1: weight decay as in AdamW; or 0
    double bias_correction;  // 1, or 0: moments are taken as they are
  };

  struct Constants {
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float rcp_bias1, rcp_bias2;  // 1 / (1 - beta^t), or 1
    float lr, eps, weight_decay, decoupled;
  };

  NC_EVERYWHERE static Constants at_step(const Options& o, int64_t t) {
    return {narrowed(o.beta1),
            narrowed(o.beta2),
            narrowed(1 - o.beta1),
            narrowed(1 - o.beta2),
            narrowed(o.bias_correction != 0 ? 1 / (1 - power(o.beta1, t)) : 1),
            narrowed(o.bias_correction != 0 ? 1 / (1 - power(o.beta2, t)) : 1),
            narrowed(o.lr),
            narrowed(o.eps),
            narrowed(o.weight_decay),
            narrowed(o.decoupled)};
  }

  template <class Arithmetic>
  NC_EVERYWHERE static float update(float p, float grad, float (&state)[kStates],
                                    const Constants& c, Arithmetic& arithmetic) {
    const bool decoupled = c.decoupled != 0;
    const float g = decoupled ? grad : fused_multiply_add(c.weight_decay, p, grad);
    const float m = fused_multiply_add(c.beta1, state[0], c.one_minus_beta1 * g);
    const float v = fused_multiply_add(c.beta2, state[1], (c.one_minus_beta2 * g) * g);
    const float denominator = arithmetic.root(v * c.rcp_bias2) + c.eps;
    const float u = arithmetic.quotient(m * c.rcp_bias1, denominator);
    const float decayed = decoupled ? fused_multiply_add(c.weight_decay, p, u) : u;
    state[0] = m;
    state[1] = v;
    return fused_multiply_add(-c.lr, decayed, p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT::adamw
