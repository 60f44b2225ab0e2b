// What products ask of a quantized weight's Python object, by the names of its attributes, and what
// autograd keeps of a weight.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "bindings/core/buffers.hpp"
#include "bindings/core/module.hpp"

namespace narrowcast {

// The bytes that a product with a weight reads: fresh, and of the weight alone. Calls its view's
// operand(), which makes stale bytes anew.
std::shared_ptr<Buffers> buffers_of_weight(const at::Tensor& weight);
// Those of its store unread, perhaps stale or freed: for what the format says.
std::shared_ptr<Buffers> unread_buffers_of_weight(const at::Tensor& weight);
// By which the operators of a graph find those bytes.
at::Tensor key_of_weight(const at::Tensor& weight);
// The usage of its bytes that a product of a pass reads. ValueError, naming recompute=True, if it
// is absent.
int usage_of_weight(const at::Tensor& weight, const Buffers& buffers, bool backward);
[[noreturn]] void throw_absent(const at::Tensor& weight, bool backward);

// The input or gradient of a product with a weight as kernels read it, whatever torch has put off:
// a collective to wait for, a change of sign. TypeError, naming the weight, if it has no memory of
// its own.
at::Tensor in_memory(const at::Tensor& activation, const at::Tensor& weight);

// The value of a weight for a product with an operand, by narrowcast::dequantize, which modes and
// traces see.
at::Tensor value_in_graph(const at::Tensor& weight, const at::Tensor& operand, bool backward);

// Whether a mode or a trace looks at operators, so that they go through the dispatcher.
bool is_watched();

// Keeps a weight for a layer's backward, past the hooks of saved tensors: what they would keep in
// its place, as a copy elsewhere, would be bytes of the forward's gather, or no bytes.
void save_weight(torch::autograd::AutogradContext* ctx, const at::Tensor& weight);
// RuntimeError if it has been written to since, or counts no writes. Lets go of it, unless the
// graph is kept for another backward.
at::Tensor saved_weight(torch::autograd::AutogradContext* ctx);

// What a layer's backward needs of its bias, the third input, and its gradient; undefined if it
// needs none. Most have one dimension, which broadcasts over rows.
void save_bias(torch::autograd::AutogradContext* ctx, const OptionalTensor& bias);
at::Tensor bias_gradient(torch::autograd::AutogradContext* ctx, const at::Tensor& gradient);

}  // namespace narrowcast
