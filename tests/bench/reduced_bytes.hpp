// What the owners of Llama's layers in flat shards reduce, and what they would with a float for
// each block.
#pragma once

#include "runtime/launch/cuts.hpp"
#include "tests/bench/flat_layers.hpp"

namespace narrowcast::test {

inline int64_t blocks_of(const nc_layout& layout, Extent matrix) {
  if (spans_tensor(layout)) return 1;
  return ceil_div(matrix.rows, layout.block_rows) * ceil_div(matrix.columns, layout.block_columns);
}

// Of all weights, with one float for each.
inline int64_t block_bytes(const nc_format& format) {
  int64_t blocks = 0;
  for (const Extent matrix : all_layers()) {
    blocks += blocks_of(format.rowwise, matrix);
    if (!format.columnwise_derived) blocks += blocks_of(format.columnwise, matrix);
  }
  return 4 * blocks;
}

// What owners tell each other of blocks and bytes that cuts divide.
inline int64_t shared_floats(const nc_format& format, const std::vector<Piece>& pieces) {
  int64_t floats = 0;
  for (const Piece& piece : pieces) {
    const Cuts cuts(format, piece.matrix, !format.columnwise_derived, piece.cuts, 0);
    floats += cuts.amaxes() + cuts.values();
  }
  return floats;
}

inline int64_t tensor_floats(const nc_format& format) {
  return format.tensor_amax != 0 ? std::ssize(all_layers()) : 0;
}

inline int64_t reduced_bytes(const nc_format& format) {
  return 4 * (tensor_floats(format) + shared_floats(format, pieces_of()));
}

// The mean, where each cut falls on any element of all alike.
inline double reduced_bytes_anywhere(const nc_format& format) {
  constexpr int64_t kPlaces = 4096;
  const int64_t all = elements_of_layers() + elements_of_norms();
  int64_t floats = 0;
  for (int64_t i = 0; i < kPlaces; ++i) {
    // A little further each time, so that columns and rows of blocks differ too.
    const int64_t cut = all / kPlaces * i + i;
    floats += shared_floats(format, pieces_with({cut}, 0, 0));
  }
  const double mean = static_cast<double>(floats) / static_cast<double>(kPlaces);
  return 4 * (static_cast<double>(tensor_floats(format)) + (kOwners - 1) * mean);
}

}  // namespace narrowcast::test
