// Lion (Chen et al., 2023, "Symbolic discovery of optimization algorithms", program 2): the sign of
// an average of momentum and gradient, with the decay of AdamW.
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT::lion {

struct Rule {
  static constexpr const char* kName = "lion";
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames[] = {"exp_avg", nullptr};
  static constexpr const char* kOptionNames[] = {"lr", "beta1", "beta2", "weight_decay", nullptr};
  struct Options {
    double lr, beta1, beta2, weight_decay;
  };

  struct Constants {
    float beta1, beta2, one_minus_beta1, one_minus_beta2, lr, weight_decay;
  };

  NC_EVERYWHERE static Constants at_step(const Options& o, int64_t) {
    return {narrowed(o.beta1),     narrowed(o.beta2), narrowed(1 - o.beta1),
            narrowed(1 - o.beta2), narrowed(o.lr),    narrowed(o.weight_decay)};
  }

  template <class Arithmetic>
  NC_EVERYWHERE static float update(float p, float grad, float (&state)[kStates],
                                    const Constants& c, Arithmetic&) {
    const float direction = fused_multiply_add(c.beta1, state[0], c.one_minus_beta1 * grad);
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction;
    state[0] = fused_multiply_add(c.beta2, state[0], c.one_minus_beta2 * grad);
    return fused_multiply_add(-c.lr, fused_multiply_add(c.weight_decay, p, sign), p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT::lion
