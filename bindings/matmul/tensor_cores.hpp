// Products by a GPU's tensor cores.
#pragma once

#include "bindings/matmul/operand.hpp"
#include "bindings/matmul/recipe.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b], by the tensor cores for a kind (nc_product_kind); undefined
// where the device has none, or the shapes do not suit them. `fast`: they may accumulate in fewer
// bits.
at::Tensor tensor_core_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                              at::ScalarType dtype);

// Whether a device has tensor cores for a kind, so that operands are best cast in the usage that
// those read; and whether they take operands of these shapes, with the bytes that they have.
bool has_tensor_cores(at::Device device, int32_t kind);
bool suits_tensor_cores(const Operand& a, const Operand& b, int32_t kind);

// Rows that an activation and its gradient come in multiples of, for their bytes and the device's
// tensor cores: zeros are added up to it, for a decoded product would cost more. `weight_gradient`:
// whether they are summed over rows, too.
int64_t row_multiple(const Recipe& recipe, at::Device device, bool weight_gradient);

}  // namespace narrowcast
