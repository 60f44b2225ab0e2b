// Products by a machine's matrix units.
#pragma once

#include "bindings/matmul/operand.hpp"
#include "bindings/matmul/recipe.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b], by the unit for a kind (nc_product_kind); undefined where the
// machine has none, or the shapes do not suit it. `fast`: the unit may accumulate in fewer bits.
at::Tensor unit_product(const Operand& a, const Operand& b, int32_t kind, bool fast,
                        at::ScalarType dtype);

// Whether a device has a unit for a kind, so that operands are best cast in the usage it reads; and
// whether that unit takes operands of these shapes, with the bytes that they have.
bool has_unit(at::Device device, int32_t kind);
bool suits_unit(const Operand& a, const Operand& b, int32_t kind);

// Rows that an activation and its gradient come in multiples of, for their bytes and the device's
// units: zeros are added up to it, for a decoded product would cost more. `weight_gradient`:
// whether they are summed over rows, too.
int64_t row_multiple(const Recipe& recipe, at::Device device, bool weight_gradient);

}  // namespace narrowcast
