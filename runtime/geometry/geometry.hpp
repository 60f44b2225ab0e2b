// The one geometry: where an element of a matrix, and its scale, lie in the buffers of a layout.
//
// Everything that cuts, gathers, pads, casts, prints or tests asks these functions. Matrices are
// [rows, columns]; "stored" coordinates are those of the buffer, exchanged where the layout says
// transposed. All arithmetic is in 64 bits. Formulas: docs/numerics.md, "Layout".
#pragma once

#include <numeric>
#include <utility>

#include "runtime/geometry/layout.h"
#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

using Layout = nc_layout;

struct Extent {
  int64_t rows, columns;
  constexpr bool operator==(const Extent&) const = default;
};

// Rows and columns from `begin` to before `end`, of a matrix or of a stored buffer.
struct Box {
  Extent begin, end;
  constexpr bool operator==(const Box&) const = default;
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

// ---- boxes of the matrix ----

// Rows and columns at whose multiples a cut divides neither a byte of the data nor a block.
constexpr Extent cut_step(const Layout& layout) {
  const Extent bytes = exchanged({1, elements_per_group(layout)}, layout.transposed);
  if (spans_tensor(layout)) return bytes;
  return {std::lcm(bytes.rows, layout.block_rows), std::lcm(bytes.columns, layout.block_columns)};
}

// Where a box lies in the stored data, in bytes. It begins at multiples of cut_step, and ends at
// such or with the matrix.
constexpr Box data_box(const Layout& layout, Box box) {
  const Extent begin = exchanged(box.begin, layout.transposed);
  const Extent end = exchanged(box.end, layout.transposed);
  return {{begin.rows, floor_div(begin.columns * layout.element_bits, 8)},
          {end.rows, floor_div(end.columns * layout.element_bits, 8)}};
}

// Where the scales of such a box lie in the stored scales: the one scale of a tensor is in every
// box.
constexpr Box scale_box(const Layout& layout, Box box) {
  if (spans_tensor(layout)) return {{0, 0}, {1, 1}};
  const auto first_of = [&layout](Extent at) {
    return exchanged(
        {ceil_div(at.rows, layout.scale_per_rows), ceil_div(at.columns, layout.scale_per_columns)},
        layout.scale_transposed);
  };
  return {first_of(box.begin), first_of(box.end)};
}

// The layout that stores a matrix as this one stores the matrix with rows and columns exchanged:
// the same bytes.
constexpr Layout mirror(Layout layout) {
  std::swap(layout.block_rows, layout.block_columns);
  std::swap(layout.scale_per_rows, layout.scale_per_columns);
  layout.transposed = !layout.transposed;
  layout.scale_transposed = !layout.scale_transposed;
  return layout;
}

constexpr bool same(const Layout& one, const Layout& other) {
  return one.block_rows == other.block_rows && one.block_columns == other.block_columns &&
         one.scale_per_rows == other.scale_per_rows &&
         one.scale_per_columns == other.scale_per_columns &&
         one.scale_pad_rows == other.scale_pad_rows &&
         one.scale_pad_columns == other.scale_pad_columns && one.transposed == other.transposed &&
         one.scale_transposed == other.scale_transposed && one.element_bits == other.element_bits &&
         one.scale_bytes == other.scale_bytes;
}

// Whether the buffers of two usages, exchanged, are those of the exchanged matrix.
constexpr bool mirrored(const Layout& one, const Layout& other) {
  Layout expected = mirror(one);
  if (spans_tensor(one)) expected.scale_transposed = other.scale_transposed;  // one has no sides
  return same(expected, other);
}

}  // namespace narrowcast::inline NC_VARIANT
