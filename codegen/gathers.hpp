// What the gathers of a plan carry: docs/decisions/0002-payloads-of-a-gather.md and 0003.
#pragma once

#include <vector>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// The layouts and `columnwise_derived` of the plan are filled.
std::vector<GatherOfPhase> gathers_of(const Plan& plan);

}  // namespace narrowcast::codegen
