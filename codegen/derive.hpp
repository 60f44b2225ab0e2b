// The rules of the project in one pure function: everything that follows from what a spec says.
#pragma once

#include "codegen/format.hpp"
#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// The format must be free of diagnostics: every field known(), every rule of validate() kept.
Plan derive(const Format& format);

}  // namespace narrowcast::codegen
