// What one thread of a CUDA tile knows of the tile's blocks: the values of those that its own
// elements lie in.
//
// A thread holds 8 rows x 4 columns, a warp 8 rows x 128 columns. A block at most that small has
// several values in a thread; a larger one has one value in all threads that it covers.
#pragma once

#include "runtime/numeric/scale_rule.hpp"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kThreadRows = 8, kThreadColumns = 4;
inline constexpr int kWarpSize = 32;
inline constexpr int kWarpColumns = kWarpSize * kThreadColumns;

template <int R, int C, class Stored>
struct CudaScales;

template <int R, int C>
struct ThreadBlocks {
  static constexpr int kRows = R < kThreadRows ? R : kThreadRows;  // of a block, in one thread
  static constexpr int kColumns = C < kThreadColumns ? C : kThreadColumns;
  static constexpr int kDown = kThreadRows / kRows, kAcross = kThreadColumns / kColumns;
};

template <int R, int C>
struct CudaBlocks {
  using Shape = ThreadBlocks<R, C>;
  float value[Shape::kDown][Shape::kAcross];

  template <class Rule>
  __device__ __forceinline__ auto map(const Rule& rule) const {
    CudaScales<R, C, decltype(rule(0.0f).stored)> scales;
#pragma unroll
    for (int down = 0; down < Shape::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < Shape::kAcross; ++across) {
        const auto scale = rule(value[down][across]);
        scales.multiplier[down][across] = scale.multiplier;
        scales.stored[down][across] = scale.stored;
      }
    }
    return scales;
  }
};

template <int R, int C, class StoredType>
struct CudaScales {
  using Stored = StoredType;
  using Shape = ThreadBlocks<R, C>;
  float multiplier[Shape::kDown][Shape::kAcross];
  Stored stored[Shape::kDown][Shape::kAcross];

  __device__ __forceinline__ float multiplier_of(int row, int column) const {
    return multiplier[row / Shape::kRows][column / Shape::kColumns];
  }
  __device__ __forceinline__ Stored stored_of(int row, int column) const {
    return stored[row / Shape::kRows][column / Shape::kColumns];
  }
};

// Four codes a row, one a byte, the first in the low byte.
struct CudaCodes {
  uint32_t row[kThreadRows];
};

}  // namespace narrowcast::inline NC_VARIANT
