// The three products of a linear layer with a quantized weight, without autograd. linear.cpp calls
// them for F.linear and its derivative; narrowcast.megatron communicates between the last two.
#pragma once

#include "bindings/matmul/scaled_backward.hpp"

namespace narrowcast {

// How a layer's forward multiplies.
struct LayerOptions {
  bool scaled = false;  // the input is cast, and bytes are multiplied: docs/matmul.md
  bool keep = false;    // the backward will make the weight's gradient
  bool share = false;   // layers of the same input may take its cast
  // The weight's bytes, fresh and of the weight alone; null where a mode or a trace looks at
  // operators.
  std::shared_ptr<Buffers> buffers{};
  // The caller's input, before autocast converted it, and which part of which weight this is: by
  // these a cast is shared.
  const at::Tensor* source = nullptr;
  int64_t weight_key = 0;
};

struct LayerOutput {
  at::Tensor value;
  // For the weight's gradient, if that is asked for: the input, or its columnwise bytes.
  std::vector<at::Tensor> saved;
};

// input: [..., in]; weight: [out, in]; bias or none. The output [..., out], in the input's dtype.
// Launches a decoding and a product, or a cast (of an input that no other layer has cast) and a
// product; and an addition where a scaled product has a bias.
LayerOutput layer_forward(const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, const LayerOptions& options);

// The products of a layer's backward. A scaled layer's gradient is cast here, in one launch.
class LayerBackward {
 public:
  // gradient: of the output, [..., out]. `products`: rowwise if the input's gradient will be asked
  // for, columnwise if the weight's will.
  LayerBackward(at::Tensor weight, const at::Tensor& gradient, bool scaled, Usages products);

  // [..., in], in the gradient's dtype.
  at::Tensor input_gradient() const;
  // [out, in], from what the forward saved. Reads none of the weight's bytes.
  at::Tensor weight_gradient(const std::vector<at::Tensor>& saved) const;
  // The two, which a graph has from one operator.
  std::vector<at::Tensor> both_gradients(const std::vector<at::Tensor>& saved) const;

 private:
  std::vector<at::Tensor> in_graph(const std::vector<at::Tensor>& saved, Usages products) const;

  at::Tensor weight_, gradient_;
  bool scaled_;
  // Of a scaled layer: its products, or in a trace what the format says of the weight.
  std::optional<ScaledBackward> in_memory_;
  std::shared_ptr<Buffers> traced_;
};

}  // namespace narrowcast
