// Where a thread block's tile lies in its matrix, and where a thread lies in the tile.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/cuda_blocks.cuh"
#include "runtime/tile/part.hpp"

namespace narrowcast::inline NC_VARIANT {

// What of a tile is the launch's own: all of it; whole rows, as of most tiles that a cut divides;
// or whatever it is. Of the first two every access is a whole word.
enum class Owned { kAll, kRows, kSome };

// Rows of a tile, counted from its first one.
struct TileRows {
  int begin, end;

  __device__ __forceinline__ bool has(int row) const { return begin <= row && row < end; }
  __device__ __forceinline__ bool touch(int first, int last) const {
    return first < end && last >= begin;
  }
};

template <int kWarpCount, Owned kOwnedPart>
struct CudaPlace {
  static constexpr Owned kOwned = kOwnedPart;
  static constexpr bool kFull = kOwned == Owned::kAll, kByRows = kOwned == Owned::kRows;
  static constexpr int kWarps = kWarpCount, kThreads = kWarps * kWarpSize;
  static constexpr int kRows = kWarps * kThreadRows, kColumns = kWarpColumns;

  Extent matrix, origin;  // of the tile
  Part part;
  TileRows rows;   // the launch's own, of kByRows
  bool is_first;   // of those that the launch has of the matrix
  bool has_words;  // four elements of a row are the launch's own together, and lie in one word
  int lane, warp;

  __device__ __forceinline__ CudaPlace(Extent matrix, Extent origin, const Part& part,
                                       TileRows rows, bool is_first, bool has_words)
      : matrix(matrix),
        origin(origin),
        part(part),
        rows(rows),
        is_first(is_first),
        has_words(kOwned != Owned::kSome || has_words),
        lane(thread_number() % kWarpSize),
        warp(thread_number() / kWarpSize) {}

  // The same of a tile further down.
  __device__ __forceinline__ CudaPlace below(int tiles) const {
    CudaPlace place = *this;
    place.origin.rows += tiles * kRows;
    place.is_first = is_first && tiles == 0;
    return place;
  }

  // Of this thread's first element.
  __device__ __forceinline__ int64_t row() const { return origin.rows + warp * kThreadRows; }
  __device__ __forceinline__ int64_t column() const {
    return origin.columns + lane * kThreadColumns;
  }
  __device__ __forceinline__ int64_t offset() const { return row() * matrix.columns + column(); }

  // Of an element by its place in the thread. Rows behind the matrix are behind the part too.
  __device__ __forceinline__ bool owns(int r, int c) const {
    if constexpr (kFull) return true;
    return owns_at(r, column() + c);
  }
  // The same of an element in a row of the thread's, by its column in the matrix.
  __device__ __forceinline__ bool owns_at(int r, int64_t column) const {
    if constexpr (kFull) return true;
    if constexpr (kByRows) return rows.has(warp * kThreadRows + r);
    return column < matrix.columns && part.owns((row() + r) * matrix.columns + column);
  }
  // Of a row by its place in the tile, and of a run down a column whether it has any: of tiles of
  // which whole rows are the launch's own.
  __device__ __forceinline__ bool owns_row(int r) const { return kFull || rows.has(r); }
  __device__ __forceinline__ bool touches_rows(int first, int last) const {
    return kFull || rows.touch(first, last);
  }
  // Whether the R x C block that holds an element of the tile has one of the launch's own.
  template <int R, int C>
  __device__ __forceinline__ bool touches_block_of(int r, int c) const {
    if constexpr (kFull) return true;
    const int64_t row = origin.rows + r, column = origin.columns + c;
    if (row >= matrix.rows) return false;
    if constexpr (kByRows) return rows.touch(r / R * R, r / R * R + R - 1);
    return column < matrix.columns && part.touches_block_of<R, C>(matrix, row, column);
  }
};

// The rows of a tile that are a part's own, by a whole warp; none, an empty range that ends before
// row 0, if it has a row that is its own in part.
template <int kRows, int kColumns>
__device__ __forceinline__ TileRows own_rows(const Part& part, Extent matrix, Extent origin,
                                             int lane) {
  constexpr TileRows kNone{0, -1};
  if (origin.columns + kColumns > matrix.columns) return kNone;
  TileRows rows{kRows, 0};
#pragma unroll 1
  for (int group = 0; group < kRows; group += kWarpSize) {
    const int64_t first = (origin.rows + group + lane) * matrix.columns + origin.columns;
    const int64_t last = first + kColumns - 1;
    const bool owns = group + lane < kRows && part.owns(first) && part.owns(last);
    const bool touches = group + lane < kRows && first < part.end && last >= part.begin;
    const unsigned own = __ballot_sync(~0u, owns);
    if (__any_sync(~0u, owns != touches)) return kNone;
    if (own == 0) continue;
    rows.begin = lesser(rows.begin, group + __ffs(static_cast<int>(own)) - 1);
    rows.end = group + kWarpSize - __clz(static_cast<int>(own));
  }
  return rows;
}

}  // namespace narrowcast::inline NC_VARIANT
