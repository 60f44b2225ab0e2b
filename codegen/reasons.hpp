// The plan's choices in words, for the comments of generated code and for pages.
#pragma once

#include <string>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// All other fields of the plan are filled.
Reasons reasons_of(const Plan& plan);

// "1x32", or "tensor" for a block that spans it.
std::string block_text(const nc_layout& layout);

}  // namespace narrowcast::codegen
