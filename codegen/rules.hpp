// What operations do with a tensor of a plan's format, as far as the format decides it.
#pragma once

#include <array>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// In the order of nc_operation. The layouts and steps of the plan are filled.
std::array<OperationRule, NC_OPERATION_COUNT> rules_of(const Plan& plan);

}  // namespace narrowcast::codegen
