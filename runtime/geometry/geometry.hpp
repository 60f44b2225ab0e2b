// The one geometry: where an element of a matrix, and its scale, lie in the buffers of a layout.
//
// Everything that cuts, gathers, pads, casts, prints or tests asks these functions. Matrices are
// [rows, columns]; "stored" coordinates are those of the buffer, exchanged where the layout says
// transposed. All arithmetic is in 64 bits. Formulas: docs/numerics.md, "Layout".
#pragma once

#include "runtime/geometry/layout.h"
#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

using Layout = nc_layout;

struct Extent {
  int64_t rows, columns;
  constexpr bool operator==(const Extent&) const = default;
};

struct BitPosition {
  int64_t byte;
  int32_t shift;
};

// Of numbers that are not negative. Unsigned inside, because a division by a power of two is then
// one shift.
NC_EVERYWHERE constexpr int64_t floor_div(int64_t n, int64_t divisor) {
  return static_cast<int64_t>(static_cast<uint64_t>(n) / static_cast<uint64_t>(divisor));
}
NC_EVERYWHERE constexpr int64_t ceil_div(int64_t n, int64_t divisor) {
  return floor_div(n + divisor - 1, divisor);
}
NC_EVERYWHERE constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return ceil_div(n, multiple) * multiple;
}
NC_EVERYWHERE constexpr Extent exchanged(Extent e, bool exchange) {
  return exchange ? Extent{e.columns, e.rows} : e;
}

NC_EVERYWHERE constexpr bool spans_tensor(const Layout& layout) { return layout.block_rows == 0; }

// ---- data ----

// The stored data matrix, in elements.
NC_EVERYWHERE constexpr Extent data_extent(const Layout& layout, Extent matrix) {
  return exchanged(matrix, layout.transposed);
}

// Elements whose bits fill whole bytes: a stored row holds a multiple of them, or the usage cannot
// hold the matrix.
NC_EVERYWHERE constexpr int64_t elements_per_group(const Layout& layout) {
  return layout.element_bits == 4 ? 2 : layout.element_bits == 6 ? 4 : 1;
}
NC_EVERYWHERE constexpr bool holds(const Layout& layout, Extent matrix) {
  return data_extent(layout, matrix).columns % elements_per_group(layout) == 0;
}

NC_EVERYWHERE constexpr int64_t data_row_bytes(const Layout& layout, Extent matrix) {
  return floor_div(data_extent(layout, matrix).columns * layout.element_bits, 8);
}

// The stored data matrix, in bytes: the shape of the buffer.
NC_EVERYWHERE constexpr Extent data_shape(const Layout& layout, Extent matrix) {
  return {data_extent(layout, matrix).rows, data_row_bytes(layout, matrix)};
}

// The first bit of an element. A 6-bit element may reach into the next byte.
NC_EVERYWHERE constexpr BitPosition element_position(const Layout& layout, Extent matrix,
                                                     int64_t row, int64_t column) {
  const int64_t stored_row = layout.transposed ? column : row;
  const int64_t stored_column = layout.transposed ? row : column;
  const int64_t bit =
      (stored_row * data_extent(layout, matrix).columns + stored_column) * layout.element_bits;
  return {bit >> 3, static_cast<int32_t>(bit & 7)};
}

// ---- scales ----

// The stored scale matrix without its padding, in scales. One scale where the block spans the
// tensor.
NC_EVERYWHERE constexpr Extent scale_extent(const Layout& layout, Extent matrix) {
  if (spans_tensor(layout)) return {1, 1};
  return exchanged({ceil_div(matrix.rows, layout.scale_per_rows),
                    ceil_div(matrix.columns, layout.scale_per_columns)},
                   layout.scale_transposed);
}

// The stored scale matrix with its padding, in scales: the shape of the buffer.
NC_EVERYWHERE constexpr Extent scale_shape(const Layout& layout, Extent matrix) {
  const Extent extent = scale_extent(layout, matrix);
  if (spans_tensor(layout)) return extent;
  return {round_up(extent.rows, layout.scale_pad_rows),
          round_up(extent.columns, layout.scale_pad_columns)};
}

// The entry of the stored scale matrix that decodes an element.
NC_EVERYWHERE constexpr Extent scale_position(const Layout& layout, int64_t row, int64_t column) {
  if (spans_tensor(layout)) return {0, 0};
  return exchanged(
      {floor_div(row, layout.scale_per_rows), floor_div(column, layout.scale_per_columns)},
      layout.scale_transposed);
}

NC_EVERYWHERE constexpr int64_t scale_index(const Layout& layout, Extent matrix, int64_t row,
                                            int64_t column) {
  const Extent position = scale_position(layout, row, column);
  return position.rows * scale_shape(layout, matrix).columns + position.columns;
}

}  // namespace narrowcast::inline NC_VARIANT
