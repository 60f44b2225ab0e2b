#include "bindings/matmul/swizzle.hpp"

#include <ATen/ops/constant_pad_nd.h>

#include "bindings/core/errors.hpp"
#include "runtime/products/swizzle.hpp"

namespace narrowcast {

at::Tensor swizzled(const at::Tensor& scales) {
  if (scales.dim() != 2 || scales.itemsize() != 1)
    value_error("scales to swizzle are [rows, groups] of one byte each, not ", scales.dim(),
                "-dimensional ", c10::toString(scales.scalar_type()));
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
