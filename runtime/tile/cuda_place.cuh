// Where a thread block's tile lies in its matrix, and where a thread lies in the tile.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/cuda_blocks.cuh"
#include "runtime/tile/part.hpp"

namespace narrowcast::inline NC_VARIANT {

// One stage serves all exchanges between warps, one after the other: each begins and ends with a
// barrier.
template <int kWarps>
struct alignas(16) CudaShared {
  unsigned char stage[kWarps * kWarpColumns * kThreadRows];
};

// kFull tiles lie inside the launch's part of a matrix whose sides let every access be a whole
// word; the others check each byte.
template <int kWarpCount, bool kInside>
struct CudaPlace {
  static constexpr bool kFull = kInside;
  static constexpr int kWarps = kWarpCount, kThreads = kWarps * kWarpSize;
  static constexpr int kRows = kWarps * kThreadRows, kColumns = kWarpColumns;

  Extent matrix, origin;  // of the tile
  Part part;
  bool is_first;   // of those that the launch has of the matrix
  bool has_words;  // four elements of a row are the launch's own together, and lie in one word
  int lane, warp;
  unsigned char* stage;

  __device__ __forceinline__ CudaPlace(Extent matrix, Extent origin, const Part& part,
                                       bool is_first, bool has_words, CudaShared<kWarps>& shared)
      : matrix(matrix),
        origin(origin),
        part(part),
        is_first(is_first),
        has_words(has_words),
        lane(thread_number() % kWarpSize),
        warp(thread_number() / kWarpSize),
        stage(shared.stage) {}

  // Of this thread's first element.
  __device__ __forceinline__ int64_t row() const { return origin.rows + warp * kThreadRows; }
  __device__ __forceinline__ int64_t column() const {
    return origin.columns + lane * kThreadColumns;
  }
  __device__ __forceinline__ int64_t offset() const { return row() * matrix.columns + column(); }
  // Of an element by its place in the thread. Rows behind the matrix are behind the part too.
  __device__ __forceinline__ bool owns(int r, int c) const {
    return kFull || (column() + c < matrix.columns && part.owns(offset() + r * matrix.columns + c));
  }
  // Whether the R x C block that holds the element has one of the launch's own.
  template <int R, int C>
  __device__ __forceinline__ bool touches_block_of(int64_t r, int64_t c) const {
    return kFull ||
           (r < matrix.rows && c < matrix.columns && part.touches_block_of<R, C>(matrix, r, c));
  }
};

}  // namespace narrowcast::inline NC_VARIANT
