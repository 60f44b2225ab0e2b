// From a tile's number to its tensor and its place in it.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// The last of `count` items, each with a run of tiles of its own, whose first tile is not above
// `tile`.
template <class Item>
NC_EVERYWHERE int64_t find_by_tile(const Item* items, int64_t count, int64_t tile) {
  int64_t low = 0, high = count - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (items[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

NC_EVERYWHERE int64_t find_tensor(const nc_launch& launch, int64_t tile) {
  return find_by_tile(launch.tensors, launch.count, tile);
}

// Tiles that a launch visits of a tensor; an empty one has a tile too.
NC_EVERYWHERE int64_t tiles_of(const nc_tensor& tensor, int64_t tile_rows, int64_t tile_columns) {
  const int64_t rows = (tensor.end_row == 0 ? tensor.rows : tensor.end_row) - tensor.first_row;
  const int64_t tiles = ceil_div(rows, tile_rows) * ceil_div(tensor.columns, tile_columns);
  return tiles == 0 ? 1 : tiles;
}

// First element of a tile: tiles of a tensor are numbered along its rows. In 32 bits, because a
// grid holds no more tiles, and because a 64-bit division costs the GPU as much as the rest of a
// small tile's work.
NC_EVERYWHERE Extent tile_origin(const nc_tensor& tensor, int64_t tile, int64_t tile_rows,
                                 int64_t tile_columns) {
  const uint32_t index = static_cast<uint32_t>(tile - tensor.first_tile);
  const uint32_t tiles = static_cast<uint32_t>(ceil_div(tensor.columns, tile_columns));
  const uint32_t tiles_per_row = tiles == 0 ? 1 : tiles;
  return {tensor.first_row + index / tiles_per_row * tile_rows,
          index % tiles_per_row * tile_columns};
}

}  // namespace narrowcast::inline NC_VARIANT
