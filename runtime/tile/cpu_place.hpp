// Where a tile of the CPU lies in its matrix, and what of it is the launch's own.
#pragma once

#include <algorithm>

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/cpu_data.hpp"
#include "runtime/tile/part.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kTileRows>
struct CpuPlace {
  static constexpr int kRows = kTileRows;
  // 128 KiB of floats: it stays in the second-level cache.
  static constexpr int kColumns = 32768 / kTileRows;
  static constexpr int kWidestBlock = 128;
  static_assert(kColumns <= kLongestRun);

  Extent matrix, origin;
  Part part;
  bool is_first;      // of those that the launch has of the matrix
  int rows, columns;  // of the tile, inside the matrix
  int width;          // columns, up to whole blocks

  CpuPlace(Extent matrix, Extent origin, const Part& part, bool is_first)
      : matrix(matrix),
        origin(origin),
        part(part),
        is_first(is_first),
        rows(static_cast<int>(std::min<int64_t>(matrix.rows - origin.rows, kRows))),
        columns(static_cast<int>(std::min<int64_t>(matrix.columns - origin.columns, kColumns))),
        width(static_cast<int>(round_up(columns, kWidestBlock))) {}

  int64_t offset(int row) const { return (origin.rows + row) * matrix.columns + origin.columns; }

  static int within(int64_t n, int most) {
    return static_cast<int>(std::clamp<int64_t>(n, 0, most));
  }

  // The columns of a row, and the rows of a column, that are the launch's own.
  Run own_columns(int row) const {
    const int64_t first = offset(row);
    return {within(part.begin - first, columns), within(part.end - first, columns)};
  }
  Run own_rows(int column) const {
    if (part.is_whole(matrix)) return {0, rows};
    const int64_t first = offset(0) + column;
    return {within(ceil_div_any(part.begin - first, matrix.columns), rows),
            within(ceil_div_any(part.end - first, matrix.columns), rows)};
  }

  // Calls action(row, column, index) for each scale of the tile's part of the matrix: its first
  // element in the tile, and its place in the buffer.
  template <Layout kLayout, class Action>
  NC_MACHINE void for_each_scale(const Action& action) const {
    if constexpr (kLayout.block_rows == 0) {
      action(0, 0, 0);
    } else {
      const int64_t pitch = scale_shape(kLayout, matrix).columns;
      for (int r = 0; r < rows; r += kLayout.scale_per_rows) {
        const Extent first = scale_position(kLayout, origin.rows + r, origin.columns);
        int64_t index = first.rows * pitch + first.columns;
        for (int c = 0; c < columns; c += kLayout.scale_per_columns) {
          action(r, c, index);
          index += kLayout.scale_transposed ? pitch : 1;
        }
      }
    }
  }

 private:
  // Of any number: those below zero give one that is not above it.
  static int64_t ceil_div_any(int64_t n, int64_t divisor) {
    return n <= 0 ? 0 : ceil_div(n, divisor);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
