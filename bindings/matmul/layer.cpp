#include "bindings/matmul/layer.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bindings/core/module.hpp"
#include "bindings/core/operators.hpp"
#include "bindings/matmul/rows.hpp"
#include "bindings/matmul/scaled_mm.hpp"
#include "bindings/matmul/weights.hpp"

namespace narrowcast {
namespace {

// ---- products with the decoded weight ----

// The weight's value for a product with an operand. `buffers`: its bytes if they are known.
at::Tensor decoded_weight(const at::Tensor& weight, std::shared_ptr<Buffers> buffers,
                          const at::Tensor& operand, bool backward) {
  if (buffers == nullptr && !is_watched()) buffers = buffers_of_weight(weight);
  if (buffers == nullptr || !buffers->is_plain) return value_in_graph(weight, operand, backward);
  return buffers->decode(usage_of_weight(weight, *buffers, backward), operand.scalar_type());
}

// As of plain operands, of which a mode sees what autograd has taken linear and matmul apart into:
// here, below autograd, nothing does. Rows that do not lie together are copied, as they are for a
// weight with a gradient; and torch's own matmul of more dimensions wants their sizes as numbers,
// which a trace may not know.
at::Tensor product_of_input(const at::Tensor& input, const at::Tensor& value,
                            const OptionalTensor& bias) {
  if (input.dim() > 2 && (!bias || !input.is_contiguous())) {
    const at::Tensor output = shaped_like(at::mm(as_rows(input), value.t()), input);
    return bias ? at::add(output, *bias) : output;
  }
  return bias ? at::native::linear(input, value, bias) : at::native::matmul(input, value.t());
}
at::Tensor product_of_gradient(const at::Tensor& gradient, const at::Tensor& value) {
  if (gradient.dim() > 2) return shaped_like(at::mm(as_rows(gradient), value), gradient);
  return at::native::matmul(gradient, value);
}

// ---- scaled products: called directly, or as the operators that a graph holds ----

bool is_traced(const Buffers& buffers) { return is_watched() || !buffers.is_plain; }

Activation cast_in_graph(const at::Tensor& rows, const Plugin& plugin, Usages usages) {
  using Cast = std::vector<at::Tensor>(const at::Tensor&, const std::string&, bool, bool);
  static const auto kOperator = typed_operator<Cast>("narrowcast::cast");
  const auto made = kOperator.call(rows, plugin.format().name, usages.rowwise, usages.columnwise);
  return activation_of(made, plugin, usages);
}

at::Tensor product_in_graph(const Operand& input, const Buffers& bytes, const at::Tensor& key,
                            at::ScalarType dtype) {
  using Multiply = at::Tensor(at::TensorList, const at::Tensor&, at::IntArrayRef,
                              const std::string&, at::ScalarType);
  static const auto kOperator = typed_operator<Multiply>("narrowcast::scaled_forward");
  const std::array<int64_t, 2> matrix{bytes.rows, bytes.columns};
  return kOperator.call(stored_tensors(input), key, matrix, bytes.facts().name, dtype);
}

LayerOutput scaled_forward(const at::Tensor& input, const at::Tensor& weight,
                           const OptionalTensor& bias, const LayerOptions& options) {
  if (bias && (bias->scalar_type() != input.scalar_type() || bias->device() != weight.device()))
    type_error("the bias is ", c10::toString(bias->scalar_type()), " on ", bias->device().str(),
               ", and the input ", c10::toString(input.scalar_type()), " with a weight on ",
               weight.device().str());
  const auto buffers = options.buffers ? options.buffers : buffers_of_weight(weight);
  const Recipe recipe(buffers->facts());
  const Usages usages{true, options.keep};
  const bool traced = is_traced(*buffers);
  // With gradients the same for all, for layers of frozen weights share the cast.
  const int64_t multiple = row_multiple(recipe, weight.device(), options.keep || options.share);
  const at::Tensor operand = traced ? input : in_memory(input, weight);
  const at::Tensor rows = padded(as_rows(operand), multiple).contiguous();
  if (!traced && !options.share) forget_input();
  const int usage = usage_of_weight(weight, *buffers, /*backward=*/false);
  const at::ScalarType dtype = input.scalar_type();
  const at::Tensor& source = options.source == nullptr ? input : *options.source;
  const Activation made =
      traced          ? cast_in_graph(rows, recipe.input, usages)
      : options.share ? cast_input(source, rows, {weight, options.weight_key}, recipe.input, usages)
                      : cast_activation(rows, recipe.input, usages);
  const at::Tensor product =
      traced ? product_in_graph(made.operand(0), *buffers, key_of_weight(weight), dtype)
             : scaled_mm(made.operand(0), operand_of(*buffers, usage, /*over_rows=*/false),
                         recipe.kind(NC_PRODUCT_FORWARD), /*fast=*/true, dtype);
  LayerOutput output{unpadded(product, input, multiple), {}};
  if (options.keep) output.saved = stored_tensors(made.operand(1));
  // A mode that looks at operators may keep the product, as selective checkpointing does.
  if (bias) output.value = traced ? at::add(output.value, *bias) : output.value.add_(*bias);
  return output;
}

}  // namespace

LayerOutput layer_forward(const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, const LayerOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (options.scaled) return scaled_forward(input, weight, bias, options);
  const at::Tensor value = decoded_weight(weight, options.buffers, input, /*backward=*/false);
  LayerOutput output{product_of_input(input, value, bias), {}};
  if (options.keep) output.saved = {input};
  return output;
}

LayerBackward::LayerBackward(at::Tensor weight, const at::Tensor& gradient, bool scaled,
                             Usages products)
    : weight_(std::move(weight)), gradient_(gradient), scaled_(scaled) {
  if (!scaled) return;
  forget_input();
  if (!products.rowwise && !products.columnwise) return;
  // The weight's own gradient needs none of its bytes, which may not have been gathered.
  const auto bytes =
      products.rowwise ? buffers_of_weight(weight_) : unread_buffers_of_weight(weight_);
  if (is_traced(*bytes)) {
    traced_ = bytes;
  } else {
    in_memory_.emplace(bytes, in_memory(gradient_, weight_), products);
  }
}

at::Tensor LayerBackward::input_gradient() const {
  if (!scaled_)
    return product_of_gradient(gradient_, decoded_weight(weight_, nullptr, gradient_, true));
  if (traced_) return in_graph({}, {true, false})[0];
  const int usage = in_memory_->weight_usage();
  if (usage < 0) throw_absent(weight_, /*backward=*/true);
  return in_memory_->input_gradient(usage);
}

at::Tensor LayerBackward::weight_gradient(const std::vector<at::Tensor>& saved) const {
  if (!scaled_) return at::matmul(as_rows(gradient_).t(), as_rows(saved.at(0)));
  if (traced_) return in_graph(saved, {false, true})[0];
  return in_memory_->weight_gradient(saved, weight_.scalar_type());
}

std::vector<at::Tensor> LayerBackward::both_gradients(const std::vector<at::Tensor>& saved) const {
  if (traced_) return in_graph(saved, {true, true});
  return {input_gradient(), weight_gradient(saved)};
}

std::vector<at::Tensor> LayerBackward::in_graph(const std::vector<at::Tensor>& saved,
                                                Usages products) const {
  // Whether the usage is there that a gather of the backward brings.
  if (products.rowwise) usage_of_weight(weight_, *traced_, /*backward=*/true);
  return scaled_backward_in_graph(gradient_, saved, key_of_weight(weight_), *traced_, products,
                                  weight_.scalar_type());
}

void bind_layer(py::module_& module) {
  module.def(
      "layer_forward",
      [](const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias, bool scaled,
         bool keep) {
        const py::gil_scoped_release release;
        LayerOutput output = layer_forward(input, weight, bias, {.scaled = scaled, .keep = keep});
        return std::pair(std::move(output.value), std::move(output.saved));
      },
      py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("scaled"), py::arg("keep"),
      "The output of a linear layer [..., out], without autograd, and what its weight's gradient "
      "needs of the input, if that is to be kept.");
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<LayerBackward>(module, "LayerBackward",
                            "The products of a linear layer's backward, one by one.")
      .def(py::init([](at::Tensor weight, const at::Tensor& gradient, bool scaled, bool of_input,
                       bool of_weight) {
             return LayerBackward(std::move(weight), gradient, scaled, {of_input, of_weight});
           }),
           py::arg("weight"), py::arg("gradient"), py::arg("scaled"), py::arg("of_input"),
           py::arg("of_weight"), Released())
      .def("input_gradient", &LayerBackward::input_gradient, Released())
      .def("weight_gradient", &LayerBackward::weight_gradient, py::arg("saved"), Released());
  module.def("kept_input_bytes", &kept_input_bytes,
             "Bytes of the last input's cast, which other layers may use.");
}

}  // namespace narrowcast
