// The constants of one update, computed once on the host.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

struct AdamOptions {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  bool decoupled;         // weight decay as in AdamW
  double grad_scale = 1;  // that gradients are to be divided by
};

// beta^t by squaring, low bit first: products only, so that a device that counts its own steps gets
// the same bits.
double power(double beta, int64_t t);

// The step with number t, from 1. In float64, rounded to nearest whatever the caller's mode, then
// narrowed; `grad` and its kin are left empty.
nc_step make_step(const AdamOptions& options, int64_t t);

}  // namespace narrowcast
