// What a format's page and the index of all formats say alike.
#pragma once

#include <string>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// "8.25": as few digits as tell it, six at the most.
std::string number_text(double value);

// "e4m3 under f32": the scale of a block, and that of the tensor above it.
std::string scale_text(const Plan& plan);

// "rowwise", or "by pass".
std::string gather_text(const Plan& plan);

}  // namespace narrowcast::codegen
