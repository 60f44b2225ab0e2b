// What the all-gathers of FSDP2 carry, phase by phase (docs/sharding.md, "A gather").
#pragma once

#include <vector>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// From the plan's layouts, gather and example.
std::vector<Phase> phases_of(const Plan& plan);

}  // namespace narrowcast::codegen
