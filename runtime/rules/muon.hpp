// The last part of Muon's step (Jordan et al., 2024): the value shrinks, as in AdamW, and moves
// against the orthogonalized momentum, which is there in the gradient's place. What comes before is
// matrix products, and no rule.
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT::muon {

struct Rule {
  static constexpr const char* kName = "muon";
  static constexpr int kStates = 0;
  static constexpr const char* kStateNames[] = {nullptr};
  static constexpr const char* kOptionNames[] = {"lr", "weight_decay", nullptr};
  struct Options {
    double lr, weight_decay;
  };

  struct Constants {
    float lr, kept;
  };

  NC_EVERYWHERE static Constants at_step(const Options& o, int64_t) {
    return {narrowed(o.lr), narrowed(1 - o.lr * o.weight_decay)};
  }

  template <class Arithmetic>
  NC_EVERYWHERE static float update(float p, float direction, float (&)[kRoom<Rule>],
                                    const Constants& c, Arithmetic&) {
    return fused_multiply_add(-c.lr, direction, c.kept * p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT::muon
