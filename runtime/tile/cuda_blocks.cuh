// What one thread of a CUDA tile knows of the tile's blocks, and which part of the work on them is
// its own.
//
// A thread holds 8 rows x 4 columns, a warp 8 rows x 128 columns. A block at most that small has
// several values in a thread; a larger one has one value in all threads that it covers.
#pragma once

#include "runtime/numeric/scale_rule.hpp"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kThreadRows = 8, kThreadColumns = 4;
inline constexpr int kWarpSize = 32;
inline constexpr int kWarpColumns = kWarpSize * kThreadColumns;

constexpr int lesser(int a, int b) { return a < b ? a : b; }

// The larger magnitude. A NaN is dropped, if one of the two is none, or kept.
template <bool kKeepsNan>
__device__ __forceinline__ float larger_magnitude(float largest, float x) {
  if constexpr (!kKeepsNan) return fmaxf(largest, fabsf(x));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(x)));
  return largest;
}

// A thread's number in its block. That its high bits are zero lets the compiler divide it, and what
// is made of it, by a shift: of an int that might be negative it cannot, and tiles divide often.
__device__ __forceinline__ int thread_number() {
  constexpr unsigned kMostThreads = 1024;  // of a block
  return static_cast<int>(threadIdx.x & (kMostThreads - 1));
}

template <int R, int C>
struct ThreadBlocks {
  static constexpr int kRows = lesser(R, kThreadRows);  // of a block, in one thread
  static constexpr int kColumns = lesser(C, kThreadColumns);
  static constexpr int kDown = kThreadRows / kRows, kAcross = kThreadColumns / kColumns;
  static constexpr int kLanes = C / kColumns, kWarps = R / kRows;  // that a block spans
};

// Threads that know the same blocks may share them out: the lanes that a block spans its kDown, the
// warps its kAcross. Those that are left over repeat the work of a holder.
template <int R, int C, int kHolderLanes, int kHolderWarps>
struct Share {
  using Blocks = ThreadBlocks<R, C>;
  static constexpr int kBlockRows = R, kBlockColumns = C;
  static constexpr int kDown = Blocks::kDown / kHolderLanes;
  static constexpr int kAcross = Blocks::kAcross / kHolderWarps;
  static constexpr int kLanesEach = Blocks::kLanes / kHolderLanes;
  static constexpr int kWarpsEach = Blocks::kWarps / kHolderWarps;

  // The first block of a thread's share, among those that it knows.
  __device__ __forceinline__ static int down(int lane) {
    return lane / kLanesEach % kHolderLanes * kDown;
  }
  __device__ __forceinline__ static int across(int warp) {
    return warp / kWarpsEach % kHolderWarps * kAcross;
  }
  // Whether no thread before this one has the same share.
  __device__ __forceinline__ static bool is_first(int lane, int warp) {
    return lane % kLanesEach == 0 && warp % kWarpsEach == 0;
  }
};

template <int R, int C>
using WholeShare = Share<R, C, 1, 1>;
template <int R, int C>
using EvenShare = Share<R, C, lesser(ThreadBlocks<R, C>::kLanes, ThreadBlocks<R, C>::kDown),
                        lesser(ThreadBlocks<R, C>::kWarps, ThreadBlocks<R, C>::kAcross)>;

// Multipliers of all blocks that a thread knows, stored scales of those in its share.
template <class ShareOfBlocks, class StoredType>
struct CudaScales {
  using Share = ShareOfBlocks;
  using Blocks = typename Share::Blocks;
  using Stored = StoredType;
  float multiplier[Blocks::kDown][Blocks::kAcross];
  Stored stored[Share::kDown][Share::kAcross];

  __device__ __forceinline__ float multiplier_of(int row, int column) const {
    return multiplier[row / Blocks::kRows][column / Blocks::kColumns];
  }
};

}  // namespace narrowcast::inline NC_VARIANT
