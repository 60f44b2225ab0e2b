// From spec files to plans, with all errors of all of them.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// The plans of some specs in the order of their names; nothing, and a text on `errors`, if a spec
// is wrong. `known`: a folder of specs that theirs may name, or empty.
std::optional<std::vector<Plan>> load_plans(const std::vector<std::string>& paths,
                                            const std::string& known, std::ostream& errors);

}  // namespace narrowcast::codegen
