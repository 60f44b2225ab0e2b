#include "bindings/matmul/layer.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/scaled_mm.hpp"
#include "bindings/matmul/tensor_cores.hpp"
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

Activation cast_rows(const at::Tensor& rows, const Plugin& plugin, Usages usages, bool stochastic,
                     bool traced) {
  if (!traced)
    return cast_activation(rows, plugin, usages,
                           stochastic ? std::optional(drawn_key(rows.device())) : std::nullopt);
  using Cast = std::vector<at::Tensor>(const at::Tensor&, const std::string&, bool, bool);
  static const auto kNearest = typed_operator<Cast>("narrowcast::cast");
  static const auto kStochastic = typed_operator<Cast>("narrowcast::cast", "stochastic");
  const auto& made = (stochastic ? kStochastic : kNearest)
                         .call(rows, plugin.format().name, usages.rowwise, usages.columnwise);
  return activation_of(made, plugin, usages);
}

// `key`: of a weight that is `b`, where a graph is made.
at::Tensor multiply(const Operand& a, const Operand& b, const OptionalTensor& key, int32_t kind,
                    bool fast, at::ScalarType dtype, bool traced) {
  if (!traced) return scaled_mm(a, b, kind, fast, dtype);
  using Multiply = at::Tensor(at::TensorList, const std::string&, int64_t, bool, at::TensorList,
                              const std::string&, int64_t, bool, at::OptionalIntArrayRef, int64_t,
                              bool, at::ScalarType, const OptionalTensor&);
  static const auto kOperator = typed_operator<Multiply>("narrowcast::scaled_mm");
  const std::vector<at::Tensor> right = key ? std::vector{*key} : stored_tensors(b);
  const std::array<int64_t, 2> matrix{b.rows, b.columns};
  return kOperator.call(
      stored_tensors(a), a.facts().name, a.usage, a.over_rows, right, b.facts().name, b.usage,
      b.over_rows, key ? at::OptionalIntArrayRef(matrix) : std::nullopt, kind, fast, dtype, {});
}

// A weight as the product of a pass reads it. Both usages of a derived format have one value; the
// tensor cores of a backward read columnwise bytes.
Operand operand_of_weight(const at::Tensor& weight, const Buffers& buffers, const Recipe& recipe,
                          bool backward) {
  const bool columnwise = backward && buffers.has(1) &&
                          has_tensor_cores(weight.device(), recipe.kind(NC_PRODUCT_INPUT_GRADIENT));
  return operand_of(buffers, columnwise ? 1 : usage_of_weight(weight, buffers, backward), backward);
}

bool is_known(const c10::SymInt& size, int64_t value) { return size.maybe_as_int() == value; }

// A matrix with zeros for the rows that are missing to a multiple. Of a size that a trace does not
// know nothing is asked: a graph is to serve all, and a size may have no value at all yet.
at::Tensor padded(const at::Tensor& rows, int64_t multiple) {
  if (multiple == 1) return rows;
  const c10::SymInt missing = (multiple - rows.sym_size(0) % multiple) % multiple;
  if (is_known(missing, 0)) return rows;
  return at::constant_pad_nd_symint(rows, {0, 0, 0, missing});
}

// The rows of a product that are no padding, in the shape of the tensor that they belong to.
at::Tensor unpadded(const at::Tensor& product, const at::Tensor& like, int64_t multiple) {
  const c10::SymInt rows = rows_of(like);
  const bool is_whole = multiple == 1 || is_known(product.sym_size(0) - rows, 0);
  const at::Tensor used = is_whole ? product : product.narrow_symint(0, 0, rows);
  return shaped_like(used, like);
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
  const bool shares = !traced && options.share;
  const at::Tensor& source = options.source == nullptr ? input : *options.source;
  const Activation made =
      shares ? cast_input(source, rows, {weight, options.weight_key}, recipe.input, usages)
             : cast_rows(rows, recipe.input, usages, /*stochastic=*/false, traced);
  const at::Tensor product =
      multiply(made.operand(0), operand_of_weight(weight, *buffers, recipe, false),
               traced ? OptionalTensor(key_of_weight(weight)) : std::nullopt,
               recipe.kind(NC_PRODUCT_FORWARD),
               /*fast=*/true, input.scalar_type(), traced);
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
    : weight_(std::move(weight)), gradient_(gradient) {
  if (!scaled) return;
  forget_input();
  if (!products.rowwise && !products.columnwise) return;
  // The weight's own gradient needs none of its bytes, which may not have been gathered.
  buffers_ = products.rowwise ? buffers_of_weight(weight_) : unread_buffers_of_weight(weight_);
  recipe_.emplace(buffers_->facts());
  row_multiple_ = row_multiple(*recipe_, weight_.device(), products.columnwise);
  is_traced_ = is_traced(*buffers_);
  const at::Tensor operand = is_traced_ ? gradient_ : in_memory(gradient_, weight_);
  cast_ = cast_rows(padded(as_rows(operand), row_multiple_).contiguous(), recipe_->gradient,
                    products, recipe_->facts.stochastic_gradient != 0, is_traced_);
}

at::Tensor LayerBackward::input_gradient() const {
  if (!recipe_)
    return product_of_gradient(gradient_, decoded_weight(weight_, nullptr, gradient_, true));
  const at::Tensor product =
      multiply(cast_->operand(0), operand_of_weight(weight_, *buffers_, *recipe_, true),
               is_traced_ ? OptionalTensor(key_of_weight(weight_)) : std::nullopt,
               recipe_->kind(NC_PRODUCT_INPUT_GRADIENT), /*fast=*/false, gradient_.scalar_type(),
               is_traced_);
  return unpadded(product, gradient_, row_multiple_);
}

at::Tensor LayerBackward::weight_gradient(const std::vector<at::Tensor>& saved) const {
  if (!recipe_) return at::matmul(as_rows(gradient_).t(), as_rows(saved.at(0)));
  return multiply(cast_->operand(1), operand_of(saved, recipe_->input, 1, true), {},
                  recipe_->kind(NC_PRODUCT_WEIGHT_GRADIENT), /*fast=*/false, weight_.scalar_type(),
                  is_traced_);
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
