// The product of two matrices in formats.
#pragma once

#include "bindings/matmul/operand.hpp"
#include "bindings/matmul/recipe.hpp"

namespace narrowcast {

// a @ b.T, [kept of a, kept of b] of a logical dtype: the product of the decoded values,
// accumulated in float32, by a matrix unit where one suits `kind` (nc_product_kind) and the shapes.
// `fast`: the unit may accumulate in fewer bits.
at::Tensor scaled_product(const Operand& a, const Operand& b, int32_t kind, bool fast,
                          at::ScalarType dtype);

// The gradients of a linear layer from that of its output, [rows, out] and contiguous, which is
// cast: the input's, [rows, in], if there is a `weight`, as its backward reads it; and the
// weight's, [out, in] of a dtype, if it is asked for, from the input's columnwise bytes.
std::vector<at::Tensor> scaled_gradients(const at::Tensor& gradient, const Recipe& recipe,
                                         const std::optional<Operand>& weight,
                                         const std::vector<at::Tensor>& input, bool of_weight,
                                         at::ScalarType weight_dtype);

}  // namespace narrowcast
