// Which matrix unit multiplies two operands. The generator asks when it writes a format's products,
// and whoever uses them asks again: the formats that they name may be others by then.
#pragma once

#include <string_view>

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/facts.h"

namespace narrowcast {

// A matrix as a product takes it: its rows are those of the result, or its columns, and it is
// summed over its columns. Element and scale are words of the vocabulary.
struct ProductOperand {
  std::string_view element, scale;
  bool two_levels;
  nc_layout layout;

  bool has_block(int64_t rows, int64_t columns) const {
    return layout.block_rows == rows && layout.block_columns == columns;
  }
  bool has_pad(int64_t rows, int64_t columns) const {
    return layout.scale_pad_rows == rows && layout.scale_pad_columns == columns;
  }
  bool has_scale_per(int64_t rows, int64_t columns) const {
    return layout.scale_per_rows == rows && layout.scale_per_columns == columns;
  }
  // Scales of 1 x 128 stored as [groups, rows], where rows that are a multiple of 4 have no
  // padding; and of 128 x 128 as [blocks, groups], padded to 4 groups. Each is stored once.
  bool is_in_groups() const {
    return has_block(1, 128) && has_scale_per(1, 128) && layout.scale_transposed &&
           (has_pad(1, 4) || has_pad(1, 1));
  }
  bool is_in_squares() const {
    return has_block(128, 128) && has_scale_per(128, 128) && !layout.scale_transposed &&
           has_pad(1, 4);
  }
  // Scales are stored for each 1 x columns, in the padding that units of sm_100 read.
  bool has_scales_for_sm100(int64_t columns) const {
    return has_scale_per(1, columns) &&
           (layout.scale_transposed ? has_pad(4, 128) : has_pad(128, 4));
  }
  // Two codes a byte.
  bool is_packed_e2m1() const { return element == "e2m1" && layout.element_bits == 4; }
  bool is_8_bit_float() const { return element == "e4m3" || element == "e5m2"; }
};

// The kind of a @ b.T, or NC_DECODED.
inline nc_product_kind kind_of(const ProductOperand& a, const ProductOperand& b) {
  const auto both_have = [&](std::string_view scale) {
    return a.scale == scale && b.scale == scale;
  };
  // A unit multiplies e4m3 by e4m3, or one of them by e5m2.
  const bool are_8_bit_floats =
      a.is_8_bit_float() && b.is_8_bit_float() && (a.element == "e4m3" || b.element == "e4m3");
  const bool in_order = !a.layout.transposed && !b.layout.transposed;
  if (both_have("f32") && in_order) {
    if (spans_tensor(a.layout) && spans_tensor(b.layout) && are_8_bit_floats)
      return NC_TENSOR_BY_TENSOR;
    if (a.element == "e4m3" && b.element == "e4m3" && a.is_in_groups()) {
      if (b.is_in_squares()) return NC_1X128_BY_128X128;
      if (b.is_in_groups()) return NC_1X128_BY_1X128;
    }
  }
  // Those of sm_100 read their operands in either order.
  if (both_have("e8m0") && a.has_scales_for_sm100(32) && b.has_scales_for_sm100(32) &&
      are_8_bit_floats)
    return NC_1X32_E8M0;
  if (a.two_levels && b.two_levels && both_have("e4m3") && a.has_scales_for_sm100(16) &&
      b.has_scales_for_sm100(16) && a.is_packed_e2m1() && b.is_packed_e2m1() && in_order)
    return NC_1X16_E4M3;
  return NC_DECODED;
}

}  // namespace narrowcast
