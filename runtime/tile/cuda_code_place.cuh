// A thread's place in a tile whose codes are there already, to be decoded or stored another way.
// Such work is moving bytes, so what counts is wide words and many of them in flight: a thread
// holds as many columns as fill 16 bytes of what is written, or eight.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

// kRows x 128 elements, kDown rows x kAcross columns a thread.
template <int kTileRows, int kRowsOfThread, int kColumnsOfThread, bool kInside>
struct CodePlace {
  static constexpr bool kFull = kInside;
  static constexpr int kRows = kTileRows, kColumns = kWarpColumns;
  static constexpr int kDown = kRowsOfThread, kAcross = kColumnsOfThread;
  static constexpr int kThreadsOfRow = kColumns / kAcross;
  static constexpr int kThreads = kRows / kDown * kThreadsOfRow;

  Extent matrix, origin;  // of the tile
  int row_group, column_group;

  __device__ __forceinline__ CodePlace(Extent matrix, Extent origin)
      : matrix(matrix),
        origin(origin),
        row_group(thread_number() / kThreadsOfRow),
        column_group(thread_number() % kThreadsOfRow) {}

  // Of this thread's first element.
  __device__ __forceinline__ int64_t row() const { return origin.rows + row_group * kDown; }
  __device__ __forceinline__ int64_t column() const {
    return origin.columns + column_group * kAcross;
  }
  __device__ __forceinline__ bool inside(int64_t r, int64_t c) const {
    return kFull || (r < matrix.rows && c < matrix.columns);
  }
  // Of an element by its place in the tile. Such tiles are of whole matrices.
  template <int R, int C>
  __device__ __forceinline__ bool touches_block_of(int r, int c) const {
    return inside(origin.rows + r, origin.columns + c);
  }
};

// One code a byte, four to a word.
template <class Place>
struct PlacedCodes {
  uint32_t row[Place::kDown][Place::kAcross / 4];
};

// What is stored of the R x C blocks that a thread meets: their scales, or, of type float, the
// multipliers that these decode to.
template <class Place, int R, int C, class StoredType>
struct PlacedScales {
  using Stored = StoredType;
  static constexpr int kBlockRows = R, kBlockColumns = C;
  static constexpr int kRows = lesser(R, Place::kDown), kColumns = lesser(C, Place::kAcross);
  static constexpr int kDown = Place::kDown / kRows, kAcross = Place::kAcross / kColumns;
  Stored stored[kDown][kAcross];
};

}  // namespace narrowcast::inline NC_VARIANT
