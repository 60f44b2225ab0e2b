#include "bindings/matmul/tensor_core_operand.hpp"

#include <ATen/ops/constant_pad_nd.h>

#include "bindings/core/launch.hpp"
#include "runtime/products/swizzle.hpp"

namespace narrowcast {
namespace {

bool has_its_usage(const Operand& operand) { return operand.over_rows == (operand.usage == 1); }

Operand with_columnwise(const Operand& operand) {
  const nc_machine& machine = operand.plugin->machine(operand.device());
  Operand derived = operand;
  derived.usage = 1;
  const Buffers::Tensors made = allocate_buffers(*operand.plugin, {operand.rows, operand.columns},
                                                 false, true, operand.device());
  derived.data = *made[NC_COLUMNWISE_DATA];
  derived.scale = *made[NC_COLUMNWISE_SCALE];
  nc_tensor entry = operand.entry();
  for (const int index : buffers_of(1)) entry.buffer[index] = made[index]->mutable_data_ptr();
  MatrixTable table(machine, operand.device());
  table.assign({entry}, machine.derive_columnwise);
  table.run(machine.derive_columnwise, "deriving columnwise");
  return derived;
}

// Two codes of 4 bits are one element of torch's, the first in the low bits.
at::ScalarType dtype_of_codes(std::string_view element) {
  return element == "e2m1"   ? at::kFloat4_e2m1fn_x2
         : element == "e5m2" ? at::kFloat8_e5m2
                             : at::kFloat8_e4m3fn;
}

// Of the kinds for sm_100 a scale is stored for each group of each row, whatever the block, and in
// the padding of swizzled ones (runtime/products/kind_of.hpp): nothing is repeated here.
at::Tensor scales_for(const Operand& operand, const nc_layout& layout, int32_t kind) {
  if (kind == NC_TENSOR_BY_TENSOR) return operand.scale;
  const at::Tensor scales = layout.scale_transposed ? operand.scale.t() : operand.scale;
  switch (kind) {
    case NC_1X32_E8M0:
      return swizzled(scales.view(at::kFloat8_e8m0fnu));
    case NC_1X16_E4M3:
      return swizzled(scales.view(at::kFloat8_e4m3fn));
    default:  // float32, without the padding of groups
      return scales.narrow(1, 0, ceil_div(operand.summed(), layout.scale_per_columns));
  }
}

}  // namespace

bool can_be_summed(const Operand& operand) {
  return has_its_usage(operand) || (operand.usage == 0 && operand.facts().columnwise_derived);
}

Operand made_for_sum(const Operand& operand) {
  return has_its_usage(operand) ? operand : with_columnwise(operand);
}

TensorCoreOperand tensor_core_operand(const Operand& operand, int32_t kind) {
  const Operand ready = made_for_sum(operand);
  const nc_layout layout = ready.layout_in_product();
  const at::Tensor codes = ready.data.view(dtype_of_codes(ready.facts().element));
  return {layout.transposed ? codes.t() : codes, scales_for(ready, layout, kind),
          kind == NC_TENSOR_BY_TENSOR ? std::nullopt : ready.spanning_scale()};
}

at::Tensor swizzled(const at::Tensor& scales) {
  const int64_t rows = scales.size(0), groups = scales.size(1);
  const Extent whole = swizzled_extent({rows, groups});
  at::Tensor bytes = scales.view(at::kByte);
  if (whole != Extent{rows, groups})
    bytes = at::constant_pad_nd(bytes, {0, whole.columns - groups, 0, whole.rows - rows});
  // Of [tile row, row / 32, row % 32, tile column, group % 4].
  constexpr int64_t kAcross = kSwizzleTile.columns, kRuns = kSwizzleRuns;
  return bytes
      .reshape({whole.rows / kSwizzleTile.rows, kSwizzleTile.rows / kRuns, kRuns,
                whole.columns / kAcross, kAcross})
      .permute({0, 3, 2, 1, 4})
      .flatten()
      .view(scales.scalar_type());
}

}  // namespace narrowcast
