// The product of two matrices in formats.
#pragma once

#include "bindings/operand.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b] of a logical dtype: the product of the decoded values,
// accumulated in float32, by a matrix unit where one suits `kind` (nc_product_kind) and the shapes.
// `fast`: the unit may accumulate in fewer bits.
at::Tensor scaled_product(const Operand& a, const Operand& b, int32_t kind, bool fast,
                          at::ScalarType dtype);

}  // namespace narrowcast
