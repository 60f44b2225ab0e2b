// How the runtime's C++ spells the words of a spec.
#pragma once

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// From the plan's element, scale, rule and levels.
TypeNames type_names_of(const Plan& plan);

}  // namespace narrowcast::codegen
