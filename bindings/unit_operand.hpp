// An operand in the form in which at::_scaled_mm takes it.
#pragma once

#include "bindings/operand.hpp"

namespace narrowcast {

struct UnitOperand {
  // [kept, summed], over the operand's bytes; of 4-bit codes two an element, [kept, summed / 2].
  at::Tensor codes;
  // The one float32 scale (1,); or float32 [kept or blocks of it, groups]; or for units of sm_100
  // one byte for each group, swizzled.
  at::Tensor scales;
  // By which the product is still to be multiplied.
  OptionalSpanningScale spanning_scale;
};

// Whether an operand has the bytes that are made for its sum, or they follow from what it has.
bool can_be_summed(const Operand& operand);

// An operand that can be summed, for the unit of a kind (nc_product_kind, not NC_DECODED). Bytes of
// the usage that is made for the sum are derived if it has the other.
UnitOperand unit_operand(const Operand& operand, int32_t kind);

}  // namespace narrowcast
