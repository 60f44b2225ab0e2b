// F.linear with a quantized weight, as an operator of torch with its derivative: products of an
// activation and of a gradient with the decoded weight. A decoded copy is never kept.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/activation.hpp"
#include "bindings/matmul/operators.hpp"
#include "bindings/matmul/weights.hpp"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weight's value for a product with an operand, decoded. Where a mode or a trace looks at
// operators, or the bytes are no plain ones, by an operator that they see.
at::Tensor decoded_operand(const at::Tensor& weight, const at::Tensor& operand, bool backward) {
  if (is_watched()) return value_in_trace(weight, operand, backward);
  const std::shared_ptr<Buffers> bytes = bytes_of_weight(weight);
  if (!bytes->is_plain) return value_in_trace(weight, operand, backward);
  return bytes->decode(usage_of_weight(weight, *bytes, backward), operand.scalar_type());
}

// As of plain operands, of which a mode sees what autograd has taken linear and matmul apart into:
// here, below autograd, nobody does. Rows that do not lie together are copied, as they are for a
// weight with a gradient; and torch's own matmul of more dimensions wants their sizes as numbers,
// which a trace may not know.
at::Tensor product_of_input(const at::Tensor& input, const at::Tensor& value,
                            const OptionalTensor& bias) {
  const bool has_rows = input.dim() > 2;
  if (has_rows && (!input.is_contiguous() || (is_watched() && !bias))) {
    const at::Tensor output = shaped_like(at::mm(as_rows(input), value.t()), input);
    return bias ? at::add(output, *bias) : output;
  }
  if (!is_watched()) return at::linear(input, value, bias);
  return bias ? at::native::linear(input, value, bias) : at::native::matmul(input, value.t());
}
at::Tensor product_of_gradient(const at::Tensor& gradient, const at::Tensor& value) {
  if (!is_watched()) return at::matmul(gradient, value);
  if (gradient.dim() > 2) return shaped_like(at::mm(as_rows(gradient), value), gradient);
  return at::native::matmul(gradient, value);
}

// The operator without autograd: no backend has it, for a wrapper is seen by Python first.
at::Tensor linear_of_plain(const at::Tensor&, const at::Tensor&, const OptionalTensor&) {
  type_error("narrowcast::linear takes a QuantizedTensor as its weight");
}

const auto& linear_operator() {
  static const auto kOperator = typed_operator<decltype(linear_of_plain)>("narrowcast::linear");
  return kOperator;
}

const auto& scaled_linear_operator() {
  static const auto kOperator =
      typed_operator<decltype(linear_of_plain)>("narrowcast::scaled_linear");
  return kOperator;
}

// Saves the weight itself: FSDP2 gathers its bytes anew for the backward. A backward makes those
// gradients alone that it is for: zero-bubble pipelines ask for the input's first, and for the
// others later, when the weight's bytes may have been freed.
struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const OptionalTensor& bias) {
    // What no gradient needs is not kept.
    ctx->save_for_backward({weight.requires_grad() ? input : at::Tensor()});
    save_weight(ctx, weight);
    save_bias(ctx, bias);
    const at::AutoDispatchBelowADInplaceOrView below;
    return product_of_input(input, decoded_operand(weight, input, /*backward=*/false), bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &input = saved[0], &gradient = gradients[0], weight = saved_weight(ctx);
    variable_list result(3);
    {
      const at::NoGradGuard once;
      const at::Tensor rows = as_rows(gradient);
      if (ctx->needs_input_grad(0))
        result[0] =
            product_of_gradient(gradient, decoded_operand(weight, gradient, /*backward=*/true));
      if (ctx->needs_input_grad(1)) result[1] = at::matmul(rows.t(), as_rows(input));
      result[2] = bias_gradient(ctx, gradient);
    }
    return without_second_derivative(std::move(result), gradient);
  }
};

at::Tensor linear_with_gradient(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias) {
  return Linear::apply(input, weight, bias);
}

// It leaves integers, complex numbers and float64 as they are.
at::Tensor as_autocast_does(const at::Tensor& tensor, at::ScalarType dtype) {
  return dtype_number(tensor.scalar_type()) < 0 ? tensor : tensor.to(dtype);
}

// F.linear's arguments as it takes them: autocast, shapes and dtypes. None if the product is not
// one of these operators'.
py::object linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                  bool scaled) {
  at::Tensor operand = input;
  OptionalTensor addend = bias;
  const at::DeviceType device = input.device().type();
  // Of meta, which has no autocast, torch does not let itself be asked.
  if (device != at::kMeta && at::autocast::is_autocast_enabled(device)) {
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
    operand = as_autocast_does(input, dtype);
    if (bias) addend = as_autocast_does(*bias, dtype);
  }
  if (weight.dim() != 2 || dtype_number(operand.scalar_type()) < 0) return py::none();
  if (operand.is_nested() || operand.dim() == 0 || operand.sym_size(-1) != weight.size(1))
    return py::none();
  at::Tensor result;
  {
    const py::gil_scoped_release release;
    const ConvertedInput before(input);
    result = (scaled ? scaled_linear_operator() : linear_operator()).call(operand, weight, addend);
  }
  return py::cast(result);
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("linear", &linear,
             "F.linear with a QuantizedTensor as its weight, of activations as they are or scaled "
             "ones; None where the operands are no matrix product of float32, bfloat16 or "
             "float16, or the input is nested.");
  // Not by the macro that does so when the file is mapped: it would end the process if that
  // happened twice.
  static torch::Library all = MAKE_TORCH_LIBRARY(narrowcast);
  all.def("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  static torch::Library autograd = MAKE_TORCH_LIBRARY_IMPL(narrowcast, Autograd);
  autograd.impl("linear", &linear_with_gradient);
  static torch::Library plain = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd);
  plain.impl("linear", &linear_of_plain);
}

}  // namespace narrowcast
