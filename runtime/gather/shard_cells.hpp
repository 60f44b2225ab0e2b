// Which bytes of a stored buffer are whose, when ranks own runs of the flattened matrix. A buffer
// is a matrix of cells, bytes of data or stored scales without padding, and a cell is the rank's
// that owns the first element, along the matrix's rows, whose bits it holds. That rank has the cell
// in full: a cast of flat shards writes whole bytes, and all scales of the blocks that it touches.
#pragma once

#include <algorithm>

#include "runtime/gather/flat_transfer.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::inline NC_VARIANT {

struct Cells {
  int64_t lines, width;             // stored rows, and cells of each
  int64_t pitch;                    // cells from one line to the next
  int64_t bytes;                    // of a cell
  int64_t columns;                  // of the matrix
  int64_t unit_rows, unit_columns;  // elements of the matrix to a unit: an element, or a scale
  int64_t unit_bits;                // units along a line fill cells, of 8 bits as it were
  bool transposed;                  // lines are the matrix's columns

  // Cells that begin within the first `units` of a line; the one that these end in is theirs.
  constexpr int64_t cells_of(int64_t units) const { return ceil_div(units * unit_bits, 8); }

  // Cells ahead of an element, or of the matrix's end.
  constexpr Front front(int64_t element) const {
    const int64_t band = unit_rows * columns;  // elements of a row of units
    if (band == 0) return {0, 0, 0, 0};
    const int64_t units = floor_div(element, band), rest = element - units * band;
    if (!transposed) {
      const int64_t across = ceil_div(std::min(rest, columns), unit_columns);
      return {units, width, cells_of(across), 0};
    }
    // The unit that the element is in, or behind, begins ahead of it on the first lines alone.
    const int64_t turn = std::min(ceil_div(rest, unit_columns), lines);
    return {turn, cells_of(units + 1), cells_of(units), cells_of(units)};
  }
};

constexpr Cells data_cells(const Layout& layout, Extent matrix) {
  const Extent shape = data_shape(layout, matrix);
  return {.lines = shape.rows,
          .width = shape.columns,
          .pitch = shape.columns,
          .bytes = 1,
          .columns = matrix.columns,
          .unit_rows = 1,
          .unit_columns = 1,
          .unit_bits = layout.element_bits,
          .transposed = layout.transposed != 0};
}

// Of a layout whose blocks do not span the tensor.
constexpr Cells scale_cells(const Layout& layout, Extent matrix) {
  const Extent used = scale_extent(layout, matrix);
  return {.lines = used.rows,
          .width = used.columns,
          .pitch = scale_shape(layout, matrix).columns,
          .bytes = layout.scale_bytes,
          .columns = matrix.columns,
          .unit_rows = layout.scale_per_rows,
          .unit_columns = layout.scale_per_columns,
          .unit_bits = 8,
          .transposed = layout.scale_transposed != 0};
}

// Ahead of the front on one line, and on all lines above one.
NC_EVERYWHERE constexpr int64_t on_line(const Front& front, int64_t line) {
  return line < front.turn ? front.before : line == front.turn ? front.at : front.after;
}
NC_EVERYWHERE constexpr int64_t above_line(const Front& front, int64_t line) {
  const int64_t before = line < front.turn ? line : front.turn;
  const int64_t through = line < front.turn + 1 ? line : front.turn + 1;
  return before * front.before + (through - before) * front.at + (line - through) * front.after;
}

}  // namespace narrowcast::inline NC_VARIANT
