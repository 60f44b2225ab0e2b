// The matrix products of a linear layer whose weight has a format: which formats meet in them, and
// which matrix unit can multiply those.
#pragma once

#include <map>

#include "codegen/diagnostic.hpp"
#include "codegen/plan.hpp"

namespace narrowcast::codegen {

using Plans = std::map<std::string, Plan, std::less<>>;  // by name

// What the spec's [matmul] comes to. `known`: the formats that it may name; the plan's own need
// not be among them. A diagnostic for a name that is none of them, or cannot be cast to.
ProductPlan products_of(const Format& format, const Plan& plan, const Plans& known,
                        Diagnostics& diagnostics);

}  // namespace narrowcast::codegen
