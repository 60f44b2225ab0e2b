// The constants of one update, computed once on the host.
#pragma once

#include <span>

#include "runtime/plugin/table.h"

namespace narrowcast {

// The step with number t, from 1. `options`: a number for each of the rule's names. In float64,
// rounded to nearest whatever the caller's mode, then narrowed. `grad_scale`: that gradients are to
// be divided by; `grad` and its dtype are left empty.
nc_step make_step(const nc_update_rule& rule, std::span<const double> options, int64_t t,
                  double grad_scale = 1);

}  // namespace narrowcast
