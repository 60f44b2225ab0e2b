// The backward of a linear layer whose products multiply bytes.
#pragma once

#include "bindings/matmul/activation.hpp"
#include "bindings/matmul/tensor_cores.hpp"

namespace narrowcast {

// Of a matrix in memory: casts the gradient of the output, [..., out], in one launch, for the
// gradients that are asked for. `products`: rowwise if that of the input will be, columnwise if
// that of the weight.
class ScaledBackward {
 public:
  ScaledBackward(std::shared_ptr<Buffers> weight, const at::Tensor& gradient, Usages products);

  // The usage of the weight that the input's gradient reads; -1 if its bytes are not there. Both
  // usages of a derived format have one value; the tensor cores of a backward read columnwise
  // bytes.
  int weight_usage() const;
  // [..., in], in the gradient's dtype.
  at::Tensor input_gradient(int weight_usage) const;
  // [out, in] of a logical dtype, from the columnwise cast of the input. Reads none of the weight's
  // bytes.
  at::Tensor weight_gradient(const std::vector<at::Tensor>& input, at::ScalarType dtype) const;

 private:
  std::shared_ptr<Buffers> weight_;
  at::Tensor gradient_;
  Recipe recipe_;
  int64_t row_multiple_;
  Activation cast_;
};

// The same by the operator that a graph holds: the gradients that are asked for, the input's first.
// `key`: of the weight, of which `bytes` tell the facts.
std::vector<at::Tensor> scaled_backward_in_graph(const at::Tensor& gradient,
                                                 const std::vector<at::Tensor>& input,
                                                 const at::Tensor& key, const Buffers& bytes,
                                                 Usages products, at::ScalarType dtype);

}  // namespace narrowcast
