// AdamW, and Adam, whose weight decay is an L2 term. Every line of the update is one IEEE operation
// or an explicit fma, in the order of docs/numerics.md, "Adam": that order is what makes CPU and
// GPU agree in every bit.
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT {

struct AdamW {
  static constexpr int kStates = 2;  // exp_avg and exp_avg_sq

  struct Options {
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    bool decoupled;  // weight decay as in AdamW
  };

  struct Constants {
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float rcp_bias1, rcp_bias2;  // 1 / (1 - beta^t)
    float learning_rate, epsilon, weight_decay;
    float decoupled;  // 1 or 0
  };

  // Of the step with number t, from 1.
  static Constants at_step(const Options& options, int64_t t) {
    return {narrowed(options.beta1),
            narrowed(options.beta2),
            narrowed(1 - options.beta1),
            narrowed(1 - options.beta2),
            narrowed(1 / (1 - power(options.beta1, t))),
            narrowed(1 / (1 - power(options.beta2, t))),
            narrowed(options.learning_rate),
            narrowed(options.epsilon),
            narrowed(options.weight_decay),
            options.decoupled ? 1.0f : 0.0f};
  }

  NC_EVERYWHERE static float update(float p, float grad, float (&state)[kStates],
                                    const Constants& c) {
    const bool decoupled = c.decoupled != 0;
    const float g = decoupled ? grad : fused_multiply_add(c.weight_decay, p, grad);
    const float m = fused_multiply_add(c.beta1, state[0], c.one_minus_beta1 * g);
    const float v = fused_multiply_add(c.beta2, state[1], (c.one_minus_beta2 * g) * g);
    const float denominator = square_root(v * c.rcp_bias2) + c.epsilon;
    const float u = (m * c.rcp_bias1) / denominator;
    const float decayed = decoupled ? fused_multiply_add(c.weight_decay, p, u) : u;
    state[0] = m;
    state[1] = v;
    return fused_multiply_add(-c.learning_rate, decayed, p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
