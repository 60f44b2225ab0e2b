// Products by tensor cores, for which cuBLASLt is asked without torch.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "bindings/core/launch.hpp"
#include "bindings/matmul/tensor_core_operand.hpp"
#include "bindings/matmul/tensor_cores.hpp"
#include "runtime/products/unit.hpp"

namespace narrowcast {
namespace {

// Codes and scales lie in order in the kinds of sm_89 and sm_90, and swizzled in those that came
// later. Whoever leaves some multiprocessors to others says so to torch alone.
bool is_open(int32_t kind) {
  return (kind == NC_TENSOR_BY_TENSOR || kind == NC_1X128_BY_128X128 ||
          kind == NC_1X128_BY_1X128) &&
         cuda_unit_product() != nullptr && !at::globalContext()._SMCarveout_EXPERIMENTAL();
}

UnitFactor side_of(const Operand& operand) {
  const nc_tensor entry = operand.entry();
  const auto [data, scale] = buffers_of(operand.usage);
  return {.codes = entry.buffer[data],
          .scales = static_cast<const float*>(entry.buffer[scale]),
          .kept = operand.kept(),
          .is_e5m2 = std::string_view(operand.facts().element) == "e5m2"};
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
bool is_aligned(const UnitFactor& side) {
  return is_aligned(side.codes) && is_aligned(side.scales);
}

// Memory for the product that `owner`, a tensor, keeps until it has been handed to the stream,
// after which torch may give the memory out again.
void* workspace(void* owner, size_t bytes) {
  at::Tensor& memory = *static_cast<at::Tensor*>(owner);
  memory = at::empty({static_cast<int64_t>(bytes)}, memory.options());
  return memory.mutable_data_ptr();
}

}  // namespace

at::Tensor cublaslt_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                           at::ScalarType dtype) {
  if (!is_open(kind)) return {};
  const Operand left = made_for_sum(a), right = made_for_sum(b);
  UnitProduct product{.a = side_of(left),
                      .b = side_of(right),
                      .summed = left.summed(),
                      .kind = kind,
                      .fast = fast && kind == NC_TENSOR_BY_TENSOR,
                      .dtype = NC_F32,
                      .result = nullptr,
                      .has_algorithm = nullptr,
                      .workspace = &workspace,
                      .owner = nullptr,
                      .stream = nullptr};
  if (!is_aligned(product.a) || !is_aligned(product.b)) return {};
  // Products of groups give back bfloat16 or float32.
  const bool narrows = kind != NC_TENSOR_BY_TENSOR && dtype == at::kHalf;
  const at::ScalarType given = narrows ? at::kFloat : dtype;
  const at::Tensor result =
      at::empty({left.kept(), right.kept()}, left.data.options().dtype(given));
  product.result = result.mutable_data_ptr();
  product.dtype = checked_dtype(given, "a product");
  at::Tensor memory = left.data;  // of whose kind the workspace is to be
  product.owner = &memory;
  bool has_algorithm = true;
  product.has_algorithm = &has_algorithm;
  call(cuda_unit_product(), "the product by tensor cores", product, left.device());
  if (!has_algorithm) return {};
  return narrows ? result.to(dtype) : result;
}

}  // namespace narrowcast
