// The matrix products of a linear layer: which two matrices each multiplies, and by which usage.
// The generator pairs formats by it, and so does who asks again of those that are loaded.
#pragma once

#include "runtime/plugin/facts.h"

namespace narrowcast {

struct Factor {
  enum Of { kWeight, kInput, kGradient, kCount } of;
  bool columnwise;
};

// In the order of nc_product_of: the first times the transpose of the second.
inline constexpr Factor kFactors[NC_PRODUCT_COUNT][2] = {
    {{Factor::kInput, false}, {Factor::kWeight, false}},
    {{Factor::kGradient, false}, {Factor::kWeight, true}},
    {{Factor::kGradient, true}, {Factor::kInput, true}},
};

}  // namespace narrowcast
