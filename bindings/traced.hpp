// Scaled products where a mode or a trace looks at operators: each step goes through the
// dispatcher, as the operators that scaled_product.cpp defines.
#pragma once

#include "bindings/activation.hpp"
#include "bindings/recipe.hpp"

namespace narrowcast {

// The tensors of a cast's usages, as stored_tensors() has them; none of a usage that was not asked
// for.
struct CastTensors {
  std::vector<at::Tensor> rowwise, columnwise;
};

CastTensors cast_in_trace(const at::Tensor& rows, const Plugin& plugin, Usages usages,
                          bool stochastic);

// The product of a cast's rowwise bytes with a weight, as Python's part of the weight's class
// spells it.
at::Tensor by_weight_in_trace(const std::vector<at::Tensor>& rowwise, const at::Tensor& weight,
                              bool backward, at::ScalarType dtype);

// The product of columnwise bytes.
at::Tensor weight_gradient_in_trace(const std::vector<at::Tensor>& gradient,
                                    const std::vector<at::Tensor>& input, const Recipe& recipe,
                                    at::ScalarType dtype);

}  // namespace narrowcast
