// The constants of one update, computed once on the host.
#pragma once

#include "runtime/plugin/table.h"
#include "runtime/rules/adamw.hpp"

namespace narrowcast {

// The step with number t, from 1. In float64, rounded to nearest whatever the caller's mode, then
// narrowed. `grad_scale`: that gradients are to be divided by, where the caller sets `scaled`;
// `grad` and its dtype are left empty.
nc_step make_step(const AdamW::Options& options, int64_t t, double grad_scale = 1);

}  // namespace narrowcast
