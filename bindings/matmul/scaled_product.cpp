#include "bindings/matmul/scaled_product.hpp"

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/activation.hpp"
#include "bindings/matmul/tensor_cores.hpp"

namespace narrowcast {
namespace {

constexpr int32_t kBfloat16Bits = 8;  // significant ones

// By the machine's units for bfloat16, of values that it holds exactly once a scale that spans the
// tensor is left out; that scale multiplies the product.
at::Tensor product_of_bfloat16(const Operand& a, const Operand& b, at::ScalarType dtype) {
  const at::Tensor left = a.value_without_spanning_scale(at::kBFloat16);
  const at::Tensor right = b.value_without_spanning_scale(at::kBFloat16).t();
  const OptionalSpanningScale left_scale = a.spanning_scale(), right_scale = b.spanning_scale();
  if (!left_scale && !right_scale && dtype == at::kBFloat16) return at::mm(left, right);
  return under_spanning_scales(at::mm(left, right, at::kFloat), left_scale, right_scale, dtype);
}

at::Tensor decoded_product(const Operand& a, const Operand& b, at::ScalarType dtype) {
  const bool exact =
      std::max(a.facts().significant_bits, b.facts().significant_bits) <= kBfloat16Bits;
  if (a.device().is_cuda() && exact) return product_of_bfloat16(a, b, dtype);
  return at::mm(a.value(at::kFloat), b.value(at::kFloat).t()).to(dtype);
}

// ---- as operators, of the tensors that graphs hold ----

std::vector<at::Tensor> all_tensors(const Activation& activation) {
  std::vector<at::Tensor> tensors;
  for (const OptionalTensor& buffer : activation.buffers) {
    if (buffer) tensors.push_back(*buffer);
  }
  if (activation.amax) tensors.push_back(*activation.amax);
  return tensors;
}

std::vector<at::Tensor> cast(const at::Tensor& value, const std::string& format, bool rowwise,
                             bool columnwise) {
  return all_tensors(
      cast_activation(value.contiguous(), plugin_named(format), {rowwise, columnwise}));
}

std::vector<at::Tensor> cast_stochastic(const at::Tensor& value, const std::string& format,
                                        bool rowwise, bool columnwise) {
  return all_tensors(cast_activation(value.contiguous(), plugin_named(format),
                                     {rowwise, columnwise}, drawn_key(value.device())));
}

std::vector<at::Tensor> stored_gradients(const at::Tensor& gradient, at::TensorList weight,
                                         const std::string& format, int64_t usage,
                                         const OptionalTensor& present, at::TensorList input,
                                         bool of_input, bool of_weight, at::ScalarType dtype) {
  const Plugin& plugin = plugin_named(format);
  std::optional<Operand> whole;
  if (of_input) {
    whole = operand_of(weight.vec(), plugin, static_cast<int>(usage), true);
    check_present(present, *whole);
  }
  return scaled_gradients(gradient.contiguous(), Recipe(plugin.format()), whole, input.vec(),
                          of_weight, dtype);
}

at::Tensor stored_product(at::TensorList a, const std::string& a_format, int64_t a_usage,
                          bool a_over_rows, at::TensorList b, const std::string& b_format,
                          int64_t b_usage, bool b_over_rows, const OptionalTensor& present,
                          int64_t kind, bool fast, at::ScalarType dtype) {
  const Operand left =
      operand_of(a.vec(), plugin_named(a_format), static_cast<int>(a_usage), a_over_rows);
  const Operand right =
      operand_of(b.vec(), plugin_named(b_format), static_cast<int>(b_usage), b_over_rows);
  check_present(present, right);
  return scaled_product(left, right, static_cast<int32_t>(kind), fast, dtype);
}

}  // namespace

at::Tensor scaled_product(const Operand& a, const Operand& b, int32_t kind, bool fast,
                          at::ScalarType dtype) {
  if (a.summed() != b.summed())
    value_error("a product sums over ", a.summed(), " and ", b.summed(), " elements");
  if (a.device() != b.device())
    value_error("a product's operands are on ", a.device().str(), " and on ", b.device().str());
  // Operands are what they were cast to, whatever autocast does to others.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (a.kept() == 0 || b.kept() == 0 || a.summed() == 0)
    return at::zeros({a.kept(), b.kept()}, a.data.options().dtype(dtype));
  const at::Tensor by_unit = unit_product(a, b, kind, fast, dtype);
  return by_unit.defined() ? by_unit : decoded_product(a, b, dtype);
}

std::vector<at::Tensor> scaled_gradients(const at::Tensor& gradient, const Recipe& recipe,
                                         const std::optional<Operand>& weight,
                                         const std::vector<at::Tensor>& input, bool of_weight,
                                         at::ScalarType weight_dtype) {
  const bool stochastic = recipe.facts.stochastic_gradient != 0;
  const auto key = stochastic ? std::optional(drawn_key(gradient.device())) : std::nullopt;
  const Activation cast =
      cast_activation(gradient, recipe.gradient, {weight.has_value(), of_weight}, key);
  std::vector<at::Tensor> made;
  if (weight)
    made.push_back(scaled_product(cast.operand(0), *weight, recipe.kind(NC_PRODUCT_INPUT_GRADIENT),
                                  /*fast=*/false, gradient.scalar_type()));
  if (of_weight)
    made.push_back(scaled_product(cast.operand(1), operand_of(input, recipe.input, 1, true),
                                  recipe.kind(NC_PRODUCT_WEIGHT_GRADIENT), /*fast=*/false,
                                  weight_dtype));
  return made;
}

void bind_scaled_product() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def("cast(Tensor value, str format, bool rowwise, bool columnwise) -> Tensor[]");
  library.def(
      "cast_stochastic(Tensor value, str format, bool rowwise, bool columnwise) -> Tensor[]",
      {at::Tag::nondeterministic_seeded, at::Tag::cudagraph_unsafe});
  library.def(
      "scaled_product(Tensor[] a, str a_format, int a_usage, bool a_over_rows, Tensor[] b, "
      "str b_format, int b_usage, bool b_over_rows, Tensor? present, int kind, bool fast, "
      "ScalarType dtype) -> Tensor");
  const std::string of_layer =
      "(Tensor gradient, Tensor[] weight, str format, int usage, Tensor? present, Tensor[] input, "
      "bool of_input, bool of_weight, ScalarType weight_dtype) -> Tensor[]";
  library.def(("scaled_gradients" + of_layer).c_str());
  library.def(("scaled_gradients_stochastic" + of_layer).c_str(),
              {at::Tag::nondeterministic_seeded, at::Tag::cudagraph_unsafe});
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) {
    device->impl("cast", &cast);
    device->impl("cast_stochastic", &cast_stochastic);
    device->impl("scaled_product", &stored_product);
    device->impl("scaled_gradients", &stored_gradients);
    // The weight's format says which of the two a graph holds: they differ in what torch is told.
    device->impl("scaled_gradients_stochastic", &stored_gradients);
  }
}

}  // namespace narrowcast
