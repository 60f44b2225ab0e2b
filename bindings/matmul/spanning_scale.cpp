#include "bindings/matmul/spanning_scale.hpp"

#include <ATen/ops/empty.h>

#include "bindings/core/launch.hpp"
#include "bindings/core/tensors.hpp"
#include "runtime/products/rescale.hpp"

namespace narrowcast {
namespace {

Rescale::Scale in_memory(const OptionalSpanningScale& scale) {
  if (!scale) return {nullptr, 1.0f};
  return {scale->stored.const_data_ptr<float>(), scale->multiplier};
}

}  // namespace

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

}  // namespace narrowcast
