// Stochastic gradient descent with momentum, as torch.optim.SGD has it: the first step takes the
// gradient itself for the momentum, whatever the dampening.
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT::sgd {

struct Rule {
  static constexpr const char* kName = "sgd";
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames[] = {"momentum_buffer", nullptr};
  static constexpr const char* kOptionNames[] = {
      "lr", "momentum", "dampening", "weight_decay", "nesterov", "decoupled", nullptr};
  struct Options {
    double lr, momentum, dampening, weight_decay;
    double nesterov, decoupled;  // 1 or 0
  };

  struct Constants {
    float lr, momentum, one_minus_dampening, weight_decay, nesterov, decoupled;
  };

  NC_EVERYWHERE static Constants at_step(const Options& o, int64_t t) {
    return {narrowed(o.lr),           narrowed(o.momentum), narrowed(t == 1 ? 1 : 1 - o.dampening),
            narrowed(o.weight_decay), narrowed(o.nesterov), narrowed(o.decoupled)};
  }

  template <class Arithmetic>
  NC_EVERYWHERE static float update(float p, float grad, float (&state)[kStates],
                                    const Constants& c, Arithmetic&) {
    const bool decoupled = c.decoupled != 0;
    const float g = decoupled ? grad : fused_multiply_add(c.weight_decay, p, grad);
    const float m = fused_multiply_add(c.momentum, state[0], c.one_minus_dampening * g);
    const float u = c.nesterov != 0 ? fused_multiply_add(c.momentum, m, g) : m;
    state[0] = m;
    return fused_multiply_add(-c.lr, decoupled ? fused_multiply_add(c.weight_decay, p, u) : u, p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT::sgd
