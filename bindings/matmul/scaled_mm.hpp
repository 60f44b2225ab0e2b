// The product of two matrices in formats.
#pragma once

#include "bindings/matmul/operand.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b] of a logical dtype: the product of the decoded values,
// accumulated in float32, by tensor cores where they suit `kind` (nc_product_kind) and the
// shapes. `fast`: they may accumulate in fewer bits.
at::Tensor scaled_mm(const Operand& a, const Operand& b, int32_t kind, bool fast,
                     at::ScalarType dtype);

}  // namespace narrowcast
