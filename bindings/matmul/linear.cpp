// F.linear with a quantized weight: the operator narrowcast::linear and its derivative.
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/core/operators.hpp"
#include "bindings/matmul/layer.hpp"
#include "bindings/matmul/rows.hpp"
#include "bindings/matmul/weights.hpp"

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves the weight itself: FSDP2 gathers its bytes anew for the backward. Of the input it saves
// what the weight's gradient needs: the input, or of a scaled layer its columnwise bytes alone. A
// backward makes those gradients that it is for: zero-bubble pipelines ask for the input's first,
// and for the others later, when the weight's bytes may have been freed.
template <bool kScaled>
struct Linear : torch::autograd::Function<Linear<kScaled>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const OptionalTensor& bias, LayerOptions options, bool with_gradients) {
    options.keep = with_gradients && weight.requires_grad();
    options.share = options.keep || (with_gradients && input.requires_grad());
    LayerOutput output = layer_forward(input, weight, bias, options);
    ctx->save_for_backward(std::move(output.saved));
    save_weight(ctx, weight);
    save_bias(ctx, bias);
    return output.value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    // Nothing below records how a gradient was made.
    TORCH_CHECK(!at::GradMode::is_enabled(), "a backward with create_graph=True: a product with a ",
                "QuantizedTensor has no second derivative. Leave create_graph out, or use "
                "weight.dequantize() and a plain product");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor weight = saved_weight(ctx), &gradient = gradients[0];
    const Usages products{ctx->needs_input_grad(0), ctx->needs_input_grad(1)};
    const LayerBackward layer(weight, gradient, kScaled, products);
    variable_list result(5);
    if (products.rowwise && products.columnwise) {
      std::vector<at::Tensor> both = layer.both_gradients(saved);
      result[0] = std::move(both[0]);
      result[1] = std::move(both[1]);
    } else if (products.rowwise) {
      result[0] = layer.input_gradient();
    } else if (products.columnwise) {
      result[1] = layer.weight_gradient(saved);
    }
    result[2] = bias_gradient(ctx, gradient);
    return result;
  }
};

at::Tensor apply_linear(const at::Tensor& input, const at::Tensor& weight,
                        const OptionalTensor& bias, const LayerOptions& options) {
  const bool with_gradients = at::GradMode::is_enabled();
  if (options.scaled) return Linear<true>::apply(input, weight, bias, options, with_gradients);
  return Linear<false>::apply(input, weight, bias, options, with_gradients);
}

at::Tensor linear_with_gradient(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, bool scaled) {
  return apply_linear(input, weight, bias, {.scaled = scaled});
}

// In inference mode, and below autograd.
at::Tensor linear_without_gradient(const at::Tensor& input, const at::Tensor& weight,
                                   const OptionalTensor& bias, bool scaled) {
  return layer_forward(input, weight, bias, {.scaled = scaled}).value;
}

// It leaves integers, complex numbers and float64 as they are.
at::Tensor as_autocast_does(const at::Tensor& tensor, at::ScalarType dtype) {
  return dtype_number(tensor.scalar_type()) < 0 ? tensor : tensor.to(dtype);
}

// F.linear's arguments as it takes them: autocast, shapes and dtypes. With the weight's bytes the
// product is made at once; without them, where a mode or a trace is to see it, by the operator.
// None if the product is not one of these.
py::object linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                  bool scaled, const std::shared_ptr<Buffers>& buffers, int64_t weight_key) {
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
    if (buffers == nullptr || !buffers->is_plain) {
      static const auto kOperator =
          typed_operator<decltype(linear_with_gradient)>("narrowcast::linear");
      result = kOperator.call(operand, weight, addend, scaled);
    } else {
      RECORD_FUNCTION("narrowcast::linear", std::vector<c10::IValue>());
      const LayerOptions options{
          .scaled = scaled, .buffers = buffers, .source = &input, .weight_key = weight_key};
      const bool below = c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
      result = below ? layer_forward(operand, weight, addend, options).value
                     : apply_linear(operand, weight, addend, options);
    }
  }
  return py::cast(result);
}

}  // namespace

void bind_linear(py::module_& module) {
  module.def("linear", &linear, py::arg("input"), py::arg("weight"), py::arg("bias"),
             py::arg("scaled"), py::arg("buffers") = nullptr, py::arg("weight_key") = 0,
             "F.linear with a QuantizedTensor as its weight, of activations as they are or scaled "
             "ones; None where the operands are no matrix product of float32, bfloat16 or "
             "float16, or the input is nested.");
  module.def("linear_without_gradient", &linear_without_gradient,
             py::call_guard<py::gil_scoped_release>(),
             "The operator narrowcast::linear below autograd.");
  // Not by the macro that does so when the file is mapped: it would end the process if that
  // happened twice.
  static torch::Library all = MAKE_TORCH_LIBRARY(narrowcast);
  all.def("linear(Tensor input, Tensor weight, Tensor? bias, bool scaled) -> Tensor");
  static torch::Library autograd = MAKE_TORCH_LIBRARY_IMPL(narrowcast, Autograd);
  autograd.impl("linear", &linear_with_gradient);
}

}  // namespace narrowcast
