// The product of two matrices in formats.
#pragma once

#include "bindings/matmul/operand.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b] of a logical dtype: the product of the decoded values,
// accumulated in float32, by tensor cores where they suit `kind` (nc_product_kind) and the
// shapes. `fast`: they may accumulate in fewer bits.
at::Tensor scaled_mm(const Operand& a, const Operand& b, int32_t kind, bool fast,
                     at::ScalarType dtype);

// A float32 product on a GPU times the scales that its operands left out, in a logical dtype. May
// be `product` itself.
at::Tensor under_spanning_scales(const at::Tensor& product, const OptionalSpanningScale& left,
                                 const OptionalSpanningScale& right, at::ScalarType dtype);

}  // namespace narrowcast
