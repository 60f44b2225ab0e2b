// Whether a tile can be read and written in whole words.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// Whether every buffer begins at a multiple of 16 bytes.
NC_EVERYWHERE bool begins_in_words(const nc_tensor& t, const void* grad) {
  uint64_t low_bits = reinterpret_cast<uint64_t>(t.value) | reinterpret_cast<uint64_t>(grad);
  for (const void* state : t.state) low_bits |= reinterpret_cast<uint64_t>(state);
  for (const void* buffer : t.buffer) low_bits |= reinterpret_cast<uint64_t>(buffer);
  return low_bits % 16 == 0;
}

// The same of every row.
NC_EVERYWHERE bool whole_words(const nc_tensor& t, const void* grad, bool transposed) {
  return begins_in_words(t, grad) && (t.columns | (transposed ? t.rows : 0)) % 16 == 0;
}

template <class Sequence>
inline constexpr bool kIsTransposed =
    Sequence::kRowwise.transposed || Sequence::kColumnwise.transposed;  // in either usage

// Whether a tile lies inside the matrix, and all of it is the launch's own.
__device__ __forceinline__ bool is_full(const nc_tensor& t, const void* grad, Extent origin,
                                        Extent tile, bool transposed) {
  const int64_t first = origin.rows * t.columns + origin.columns;
  const int64_t last = first + (tile.rows - 1) * t.columns + tile.columns - 1;
  return whole_words(t, grad, transposed) && origin.rows + tile.rows <= t.rows &&
         origin.columns + tile.columns <= t.columns && first >= t.before &&
         last < t.rows * t.columns - t.after;
}

}  // namespace narrowcast::inline NC_VARIANT
