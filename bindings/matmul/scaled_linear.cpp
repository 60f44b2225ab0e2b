// F.linear with a quantized weight where activations and gradients are cast, too, as the weight's
// format says: docs/matmul.md.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/scaled_product.hpp"
#include "bindings/matmul/tensor_cores.hpp"
#include "bindings/matmul/traced.hpp"
#include "bindings/matmul/weights.hpp"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor scaled_linear_of_plain(const at::Tensor&, const at::Tensor&, const OptionalTensor&) {
  type_error("narrowcast::scaled_linear takes a QuantizedTensor as its weight");
}
// Both usages of a derived format have one value; a unit of the backward reads columnwise bytes.
bool prefers_columnwise(const Buffers& bytes, bool backward, int32_t kind) {
  return backward && bytes.has(1) && has_unit(bytes.device, kind);
}

// A weight as the product of a pass reads it.
Operand operand_of_weight(const at::Tensor& weight, const Buffers& bytes, const Recipe& recipe,
                          bool backward) {
  const bool unit_order =
      prefers_columnwise(bytes, backward, recipe.kind(NC_PRODUCT_INPUT_GRADIENT));
  return operand_of(bytes, unit_order ? 1 : usage_of_weight(weight, bytes, backward), backward);
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

// The layer's output, and the input's columnwise bytes if they are asked for.
struct Output {
  // `shares`: other layers may take the input's cast.
  Output(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
         bool columnwise, bool shares) {
    if (bias && (bias->scalar_type() != input.scalar_type() || bias->device() != weight.device()))
      type_error("the bias is ", c10::toString(bias->scalar_type()), " on ", bias->device().str(),
                 ", and the input ", c10::toString(input.scalar_type()), " with a weight on ",
                 weight.device().str());
    const std::shared_ptr<Buffers> bytes = bytes_of_weight(weight);
    const Recipe recipe(bytes->facts());
    const Usages usages{true, columnwise};
    const bool traced = is_watched() || !bytes->is_plain;
    const at::Tensor operand = traced ? input : in_memory(input, weight);
    // With gradients the same for all, for layers of frozen weights share the cast.
    const int64_t multiple = row_multiple(recipe, bytes->device, shares);
    const at::Tensor rows = padded(as_rows(operand), multiple).contiguous();
    const at::ScalarType dtype = input.scalar_type();
    at::Tensor product;
    if (traced) {
      CastTensors cast = cast_in_trace(rows, recipe.input, usages);
      product = by_weight_in_trace(cast.rowwise, weight, false, dtype);
      saved = std::move(cast.columnwise);
    } else {
      if (!shares) forget_input();
      const Activation cast = shares ? cast_input(input, rows, weight, recipe.input, usages)
                                     : cast_activation(rows, recipe.input, usages);
      product = scaled_product(cast.operand(0), operand_of_weight(weight, *bytes, recipe, false),
                               recipe.kind(NC_PRODUCT_FORWARD), /*fast=*/true, dtype);
      if (columnwise) saved = stored_tensors(cast.operand(1));
    }
    value = unpadded(product, input, multiple);
    // Whoever looks at operators may keep the product, as selective checkpointing does.
    if (bias) value = traced ? at::add(value, *bias) : value.add_(*bias);
  }

  at::Tensor value;
  std::vector<at::Tensor> saved;  // the columnwise bytes
};

// Saves the input's columnwise bytes, never the input, and the weight itself: FSDP2 gathers its
// bytes anew for the backward.
struct ScaledLinear : torch::autograd::Function<ScaledLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const OptionalTensor& bias, bool with_gradients) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool columnwise = with_gradients && weight.requires_grad();
    const bool shares = columnwise || (with_gradients && input.requires_grad());
    const Output output(input, weight, bias, columnwise, shares);
    ctx->save_for_backward(output.saved);
    save_weight(ctx, weight);
    save_bias(ctx, bias);
    return output.value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor weight = saved_weight(ctx), &incoming = gradients[0];
    variable_list result(4);
    {
      const at::NoGradGuard once;
      forget_input();
      const at::Tensor gradient =
          incoming.layout() == at::kStrided ? incoming : incoming.to_dense();
      // Those gradients alone that this backward is for, as in linear.cpp.
      const Usages usages{ctx->needs_input_grad(0), ctx->needs_input_grad(1)};
      if (usages.rowwise || usages.columnwise) multiply(weight, gradient, saved, usages, result);
      result[2] = bias_gradient(ctx, gradient);
    }
    return without_second_derivative(std::move(result), incoming);
  }

 private:
  static void multiply(const at::Tensor& weight, const at::Tensor& gradient,
                       const std::vector<at::Tensor>& input, Usages usages, variable_list& result) {
    // The weight's own gradient needs none of its bytes, which may not have been gathered.
    const std::shared_ptr<Buffers> bytes =
        usages.rowwise ? bytes_of_weight(weight) : unread_bytes_of_weight(weight);
    const Recipe recipe(bytes->facts());
    const bool traced = is_watched() || !bytes->is_plain;
    const at::Tensor operand = traced ? gradient : in_memory(gradient, weight);
    const int64_t multiple = row_multiple(recipe, bytes->device, usages.columnwise);
    const at::Tensor rows = padded(as_rows(operand), multiple).contiguous();
    std::vector<at::Tensor> made;
    if (traced) {
      made = gradients_in_trace(rows, weight, input, usages);
    } else {
      std::optional<Operand> whole;
      if (usages.rowwise) whole = operand_of_weight(weight, *bytes, recipe, true);
      made = scaled_gradients(rows, recipe, whole, input, usages.columnwise, weight.scalar_type());
    }
    if (usages.rowwise) result[0] = unpadded(made.front(), gradient, multiple);
    if (usages.columnwise) result[1] = made.back();
  }
};

at::Tensor scaled_linear_with_gradient(const at::Tensor& input, const at::Tensor& weight,
                                       const OptionalTensor& bias) {
  return ScaledLinear::apply(input, weight, bias, at::GradMode::is_enabled());
}

}  // namespace

void bind_scaled_linear(py::module_& module) {
  module.def("prefers_columnwise", &prefers_columnwise,
             "Whether a product of a pass reads a weight's columnwise bytes where it has both.");
  module.def(
      "scaled_linear_without_autograd",
      [](const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
        return Output(input, weight, bias, /*columnwise=*/false, /*shares=*/false).value;
      },
      "The operator narrowcast::scaled_linear in inference mode.");
  module.def("kept_input_bytes", &kept_input_bytes,
             "Bytes of the last input's cast, which other layers may use.");
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def("scaled_linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  static torch::Library autograd = MAKE_TORCH_LIBRARY_IMPL(narrowcast, Autograd);
  autograd.impl("scaled_linear", &scaled_linear_with_gradient);
  static torch::Library plain = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd);
  plain.impl("scaled_linear", &scaled_linear_of_plain);
}

}  // namespace narrowcast
