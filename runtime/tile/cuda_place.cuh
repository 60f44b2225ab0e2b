// Where a thread block's tile lies in its matrix, and where a thread lies in the tile.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

// One stage serves all exchanges between warps, one after the other: each begins and ends with a
// barrier.
template <int kWarps>
struct alignas(16) CudaShared {
  unsigned char stage[kWarps * kWarpColumns * kThreadRows];
};

// kFull tiles lie inside a matrix whose sides let every access be a whole word; the others check
// each byte.
template <int kWarpCount, bool kInside>
struct CudaPlace {
  static constexpr bool kFull = kInside;
  static constexpr int kWarps = kWarpCount, kThreads = kWarps * kWarpSize;
  static constexpr int kRows = kWarps * kThreadRows, kColumns = kWarpColumns;

  Extent matrix, origin;  // of the tile
  int lane, warp;
  unsigned char* stage;

  __device__ __forceinline__ CudaPlace(Extent matrix, Extent origin, CudaShared<kWarps>& shared)
      : matrix(matrix),
        origin(origin),
        lane(thread_number() % kWarpSize),
        warp(thread_number() / kWarpSize),
        stage(shared.stage) {}

  // Of this thread's first element.
  __device__ __forceinline__ int64_t row() const { return origin.rows + warp * kThreadRows; }
  __device__ __forceinline__ int64_t column() const {
    return origin.columns + lane * kThreadColumns;
  }
  __device__ __forceinline__ int64_t offset() const { return row() * matrix.columns + column(); }
  __device__ __forceinline__ bool inside(int64_t r, int64_t c) const {
    return kFull || (r < matrix.rows && c < matrix.columns);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
