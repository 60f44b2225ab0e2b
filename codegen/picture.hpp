// A picture of one usage in text: the corner of the matrix, its blocks, and where the scale of each
// is stored.
#pragma once

#include <string>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

std::string picture_of_blocks(const nc_layout& layout);

// How codes lie in the bytes of a stored row: a sentence.
std::string packing_of(const nc_layout& layout);

}  // namespace narrowcast::codegen
