// The bytes of a matrix that the owner of a flat shard writes, by the one geometry.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/quantized.hpp"

namespace narrowcast::test {

// Of a buffer, for each byte whether it is of elements `begin` to `end`, or of the blocks that hold
// them.
inline std::vector<bool> owned_bytes(const nc_format& format, Extent matrix, int buffer,
                                     int64_t begin, int64_t end) {
  std::vector<bool> bytes(static_cast<size_t>(bytes_of(format, matrix, buffer)));
  const Layout& layout = layout_of(format, buffer);
  const auto mark = [&](int64_t from, int64_t count) {
    std::fill_n(bytes.begin() + from, count, true);
  };
  if (buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA) {
    for (int64_t i = begin; i < end; ++i) {
      const BitPosition at =
          element_position(layout, matrix, i / matrix.columns, i % matrix.columns);
      mark(at.byte, at.shift + layout.element_bits > 8 ? 2 : 1);
    }
    return bytes;
  }
  if (spans_tensor(layout)) {
    mark(0, layout.scale_bytes);
    return bytes;
  }
  std::vector<bool> touched(bytes.size());  // by block, at its first element's scale
  const auto first_of = [&](int64_t row, int64_t column) {
    return scale_index(layout, matrix, row / layout.block_rows * layout.block_rows,
                       column / layout.block_columns * layout.block_columns);
  };
  for (int64_t i = begin; i < end; ++i)
    touched[static_cast<size_t>(first_of(i / matrix.columns, i % matrix.columns))] = true;
  for (int64_t row = 0; row < matrix.rows; row += layout.scale_per_rows) {
    for (int64_t column = 0; column < matrix.columns; column += layout.scale_per_columns) {
      if (touched[static_cast<size_t>(first_of(row, column))])
        mark(scale_index(layout, matrix, row, column) * layout.scale_bytes, layout.scale_bytes);
    }
  }
  return bytes;
}

}  // namespace narrowcast::test
