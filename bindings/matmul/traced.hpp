// Scaled products where a mode or a trace looks at operators: each step goes through the
// dispatcher, as the operators that scaled_product.cpp defines.
#pragma once

#include "bindings/matmul/activation.hpp"

namespace narrowcast {

// The tensors of a cast's usages, as stored_tensors() has them; none of a usage that was not asked
// for.
struct CastTensors {
  std::vector<at::Tensor> rowwise, columnwise;
};

CastTensors cast_in_trace(const at::Tensor& rows, const Plugin& plugin, Usages usages);

// The product of a cast's rowwise bytes with a weight, as Python's part of the weight's class
// spells it.
at::Tensor by_weight_in_trace(const std::vector<at::Tensor>& rowwise, const at::Tensor& weight,
                              bool backward, at::ScalarType dtype);

// Both gradients of a layer, those that `usages` of the gradient's cast are for: the input's, and
// the weight's from the input's columnwise bytes. One operator, for a graph that is run calls each
// from Python.
std::vector<at::Tensor> gradients_in_trace(const at::Tensor& rows, const at::Tensor& weight,
                                           const std::vector<at::Tensor>& input, Usages usages);

}  // namespace narrowcast
