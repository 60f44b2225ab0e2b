// The order in which matrix units of sm_100 read scales of one byte. cuBLAS calls it the layout of
// 1D block scaling factors: tiles of 128 rows by 4 groups, padded with zeros, one row of tiles
// behind the other. A tile's 512 bytes are 32 runs of 16: the groups of 4 rows that lie 32 apart.
#pragma once

#include "runtime/geometry/geometry.hpp"

namespace narrowcast {

inline constexpr Extent kSwizzleTile{128, 4};
inline constexpr int64_t kSwizzleRuns = 32;  // in a tile

// Rows and groups of whole tiles, of which there are as many bytes as their product.
constexpr Extent swizzled_extent(Extent scales) {
  return {round_up(scales.rows, kSwizzleTile.rows), round_up(scales.columns, kSwizzleTile.columns)};
}

// The byte that scales a group of a row, of rows of `groups` groups.
constexpr int64_t swizzled_index(int64_t row, int64_t group, int64_t groups) {
  constexpr int64_t kTileBytes = kSwizzleTile.rows * kSwizzleTile.columns;
  constexpr int64_t kRunBytes = kTileBytes / kSwizzleRuns;
  const int64_t tiles_across = ceil_div(groups, kSwizzleTile.columns);
  const int64_t tile = row / kSwizzleTile.rows * tiles_across + group / kSwizzleTile.columns;
  const int64_t inside = row % kSwizzleTile.rows;
  return tile * kTileBytes + inside % kSwizzleRuns * kRunBytes +
         inside / kSwizzleRuns * kSwizzleTile.columns + group % kSwizzleTile.columns;
}

}  // namespace narrowcast
