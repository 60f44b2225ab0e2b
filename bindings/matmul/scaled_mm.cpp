#include "bindings/matmul/scaled_mm.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "bindings/core/launch.hpp"
#include "bindings/core/module.hpp"
#include "bindings/core/operators.hpp"
#include "bindings/matmul/activation.hpp"
#include "bindings/matmul/tensor_cores.hpp"
#include "runtime/products/rescale.hpp"

namespace narrowcast {
namespace {

constexpr int32_t kBfloat16Bits = 8;  // significant ones

Rescale::Scale in_memory(const OptionalSpanningScale& scale) {
  if (!scale) return {nullptr, 1.0f};
  return {scale->stored.const_data_ptr<float>(), scale->multiplier};
}

// By the tensor cores for bfloat16, of values that it holds exactly once a scale that spans the
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

std::vector<at::Tensor> cast(const at::Tensor& value, const std::string& format, bool rowwise,
                             bool columnwise) {
  return all_tensors(
      cast_activation(value.contiguous(), plugin_named(format), {rowwise, columnwise}));
}

at::Tensor scaled_mm_of_stored(at::TensorList a, const std::string& a_format, int64_t a_usage,
                               bool a_over_rows, at::TensorList b, const std::string& b_format,
                               int64_t b_usage, bool b_over_rows, int64_t kind, bool fast,
                               at::ScalarType dtype, const OptionalTensor& offsets) {
  if (offsets)
    not_implemented(
        "narrowcast::scaled_mm: products of groups of rows (offsets) are not there yet. "
        "Multiply each group by itself, without offsets");
  const auto side = [](at::TensorList stored, const std::string& format, int64_t usage,
                       bool over_rows) {
    return operand_of(stored.vec(), plugin_named(format), static_cast<int>(usage), over_rows);
  };
  return scaled_mm(side(a, a_format, a_usage, a_over_rows), side(b, b_format, b_usage, b_over_rows),
                   static_cast<int32_t>(kind), fast, dtype);
}

at::Tensor forward_of_key(at::TensorList input, const at::Tensor& key, at::IntArrayRef /*matrix*/,
                          const std::string& format, at::ScalarType dtype) {
  const std::shared_ptr<Buffers> weight = checked_bytes_of_key(key, plugin_named(format));
  const int usage = weight->product_usage(/*backward=*/false);
  check_gathered(*weight, std::max(usage, 0));
  const Recipe recipe(weight->facts());
  return scaled_mm(operand_of(input.vec(), recipe.input, 0, /*over_rows=*/false),
                   operand_of(*weight, usage, /*over_rows=*/false), recipe.kind(NC_PRODUCT_FORWARD),
                   /*fast=*/true, dtype);
}

}  // namespace

at::Tensor scaled_mm(const Operand& a, const Operand& b, int32_t kind, bool fast,
                     at::ScalarType dtype) {
  if (a.summed() != b.summed())
    value_error("a product sums over ", a.summed(), " and ", b.summed(), " elements");
  if (a.device() != b.device())
    value_error("a product's operands are on ", a.device().str(), " and on ", b.device().str());
  // Operands are what they were cast to, whatever autocast does to others.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (a.kept() == 0 || b.kept() == 0 || a.summed() == 0)
    return at::zeros({a.kept(), b.kept()}, a.data.options().dtype(dtype));
  const at::Tensor by_tensor_cores = tensor_core_matmul(a, b, kind, fast, dtype);
  return by_tensor_cores.defined() ? by_tensor_cores : decoded_product(a, b, dtype);
}

at::Tensor under_spanning_scales(const at::Tensor& product, const OptionalSpanningScale& left,
                                 const OptionalSpanningScale& right, at::ScalarType dtype) {
  const at::Tensor result =
      dtype == at::kFloat ? product : at::empty(product.sizes(), product.options().dtype(dtype));
  const Rescale rescale{.product = product.const_data_ptr<float>(),
                        .result = result.mutable_data_ptr(),
                        .count = product.numel(),
                        .dtype = checked_dtype(dtype, "a product"),
                        .first = in_memory(left),
                        .second = in_memory(right),
                        .stream = nullptr};
  call(cuda_rescale(), "rescaling a product", rescale, product.device());
  return result;
}

void bind_scaled_mm() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def("cast(Tensor value, str format, bool rowwise, bool columnwise) -> Tensor[]");
  library.def(
      "scaled_mm(Tensor[] a, str a_format, int a_usage, bool a_over_rows, Tensor[] b, "
      "str b_format, int b_usage, bool b_over_rows, int kind, bool fast, ScalarType dtype, "
      "Tensor? offsets=None) -> Tensor");
  library.def(
      "scaled_forward(Tensor[] input, Tensor key, int[] matrix, str format, ScalarType dtype) -> "
      "Tensor");
  implement("cast", &cast);
  implement("scaled_mm", &scaled_mm_of_stored);
  implement("scaled_forward", &forward_of_key);
}

}  // namespace narrowcast
