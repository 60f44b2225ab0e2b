// An operand in the form in which at::_scaled_mm takes it.
#pragma once

#include "bindings/matmul/operand.hpp"

namespace narrowcast {

struct TensorCoreOperand {
  // [kept, summed], over the operand's bytes; of 4-bit codes two an element, [kept, summed / 2].
  at::Tensor codes;
  // The one float32 scale (1,); or float32 [kept or blocks of it, groups]; or on sm_100
  // one byte for each group, swizzled.
  at::Tensor scales;
  // By which the product is still to be multiplied.
  OptionalSpanningScale spanning_scale;
};

// Whether an operand has the bytes that are made for its sum, or they follow from what it has.
bool can_be_summed(const Operand& operand);

// An operand that can be summed, with the bytes that are made for its sum: derived if it has the
// others.
Operand made_for_sum(const Operand& operand);

// The same for a kind of product (nc_product_kind, not NC_DECODED).
TensorCoreOperand tensor_core_operand(const Operand& operand, int32_t kind);

// Scales [rows, groups] of a dtype of one byte, with any strides, as sm_100's tensor cores read
// them (swizzled_index()): 1-D, of the same dtype, padded with zero bytes to whole tiles.
at::Tensor swizzled(const at::Tensor& scales);

}  // namespace narrowcast
