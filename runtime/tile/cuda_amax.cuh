// From the values in a thread to the amax of each block, and from there to its scale. The threads
// that know the same blocks share them out: what is reduced ends at the thread that makes the
// scale, and each multiplier goes back to all of them.
#pragma once

#include <type_traits>

#include "runtime/tile/cuda_place.cuh"

namespace narrowcast::inline NC_VARIANT {

// The maxima across kLanes lanes, of the rows in the lane's share. Each step halves the distance
// between lanes, and the rows as well, as long as there are two: a lane keeps one half and sends
// the other. A block in several lanes fills the columns of each.
template <bool kKeepsNan, int kLanes, int kDown, int kAcross>
__device__ __forceinline__ void reduce_lanes(int lane, float (&value)[kDown][kAcross]) {
  static_assert(kLanes == 1 || kAcross == 1);
  int count = kDown;
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const bool upper = (lane & distance) != 0;
    const bool halves = count > 1;
    if (halves) count /= 2;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float low = value[i][0], high = halves ? value[count + i][0] : low;
      const float received = __shfl_xor_sync(~0u, upper ? low : high, distance);
      value[i][0] = larger_magnitude<kKeepsNan>(upper ? high : low, received);
    }
  }
}

// The maxima across groups of warps, of the columns in the thread's share. `staged`: in shared
// memory.
template <bool kKeepsNan, class Share, class Place, int kAcross>
__device__ __forceinline__ void reduce_warps(const Place& at, float* staged,
                                             const float (&value)[kAcross],
                                             float (&largest)[Share::kAcross]) {
  constexpr int kWarps = Share::Blocks::kWarps;
#pragma unroll
  for (int across = 0; across < kAcross; ++across)
    staged[(at.warp * kAcross + across) * kWarpSize + at.lane] = value[across];
  __syncthreads();
  const int first = at.warp / kWarps * kWarps * kAcross + Share::across(at.warp);
#pragma unroll
  for (int across = 0; across < Share::kAcross; ++across) {
    largest[across] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      largest[across] = larger_magnitude<kKeepsNan>(
          largest[across], staged[(first + w * kAcross + across) * kWarpSize + at.lane]);
    }
  }
}

// The columns of all shares.
template <class Share, class Place, int kAcross>
__device__ __forceinline__ void gather_warps(const Place& at, float* staged,
                                             const float (&mine)[Share::kAcross],
                                             float (&all)[kAcross]) {
  constexpr int kWarps = Share::Blocks::kWarps;
  const int first = at.warp / kWarps * kAcross, own = first + Share::across(at.warp);
#pragma unroll
  for (int across = 0; across < Share::kAcross; ++across)
    staged[(own + across) * kWarpSize + at.lane] = mine[across];
  __syncthreads();
#pragma unroll
  for (int across = 0; across < kAcross; ++across)
    all[across] = staged[(first + across) * kWarpSize + at.lane];
}

// The largest magnitudes of the blocks in a thread's share. Warps exchange maxima in one part of
// shared memory, and multipliers in another, which each begin free: of a tile that is full the
// barrier of the multipliers comes after the last read of the maxima, and that of the next maxima
// after the last read of the multipliers. Of others a cast may not follow.
template <class Share, class Place, bool kKeepsNonfinite>
struct CudaAmax {
  using Blocks = typename Share::Blocks;
  static constexpr bool kGathers = Share::kAcross < Blocks::kAcross;
  const Place& at;
  float* multipliers;  // the exchange of those
  float value[Share::kDown][Share::kAcross];

  // `largest`: in the thread.
  __device__ __forceinline__ CudaAmax(const Place& at, float* maxima, float* multipliers,
                                      float (&largest)[Blocks::kDown][Blocks::kAcross])
      : at(at), multipliers(multipliers) {
    reduce_lanes<kKeepsNonfinite, Blocks::kLanes>(at.lane, largest);
    if constexpr (Blocks::kWarps > 1) {
      if constexpr (!Place::kFull) __syncthreads();
      reduce_warps<kKeepsNonfinite, Share>(at, maxima, largest[0], value[0]);
      if constexpr (Place::kFull && !kGathers) __syncthreads();
    } else {
#pragma unroll
      for (int down = 0; down < Share::kDown; ++down) {
#pragma unroll
        for (int across = 0; across < Share::kAcross; ++across)  // 0 where all are NaN
          value[down][across] = larger_magnitude<kKeepsNonfinite>(0.0f, largest[down][across]);
      }
    }
  }

  // What the amaxes of all owners are, of the blocks that they share. All threads that hold a
  // block's amax hold the same.
  __device__ __forceinline__ void share() {
    if (at.part.seams == nullptr) return;
    constexpr int R = Share::kBlockRows, C = Share::kBlockColumns;
    const int64_t row = at.origin.rows / R + at.warp * kThreadRows / R + Share::down(at.lane);
    const int64_t column =
        at.origin.columns / C + at.lane * kThreadColumns / C + Share::across(at.warp);
    constexpr int kSeams = std::extent_v<decltype(nc_seams::blocks)>;
    // Few tiles lie at a seam, and their code is not in the cache: a loop that stays one is read
    // once, and what is jumped over is not read at all.
#pragma unroll 1
    for (int i = 0; i < kSeams; ++i) {
      const nc_seam seam = at.part.seams->blocks[i];
      if (seam.block_rows != R || seam.block_columns != C) continue;
      if (row + Share::kDown <= seam.row || row >= seam.row + seam.rows ||
          column + Share::kAcross <= seam.column || column >= seam.column + seam.columns)
        continue;
#pragma unroll
      for (int down = 0; down < Share::kDown; ++down) {
#pragma unroll
        for (int across = 0; across < Share::kAcross; ++across)
          at.part.share_amax(seam, row + down, column + across, value[down][across]);
      }
    }
  }

  template <class Rule>
  __device__ __forceinline__ auto map(const Rule& rule) const {
    CudaScales<Share, decltype(rule(0.0f).stored)> scales;
    float multiplier[Share::kDown][Share::kAcross];
#pragma unroll
    for (int down = 0; down < Share::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < Share::kAcross; ++across) {
        const float amax = value[down][across];
        const auto scale = scale_or_nan(rule, amax, kKeepsNonfinite && !is_finite(amax));
        multiplier[down][across] = scale.multiplier;
        scales.stored[down][across] = scale.stored;
      }
    }
    gather(multiplier, scales.multiplier);
    return scales;
  }

 private:
  __device__ __forceinline__ void gather(const float (&mine)[Share::kDown][Share::kAcross],
                                         float (&all)[Blocks::kDown][Blocks::kAcross]) const {
    if constexpr (kGathers) {
      gather_warps<Share>(at, multipliers, mine[0], all[0]);
    } else {
#pragma unroll
      for (int down = 0; down < Blocks::kDown; ++down) {
#pragma unroll
        for (int across = 0; across < Blocks::kAcross; ++across) {
          const float held = mine[down % Share::kDown][across];
          const int holder = down / Share::kDown * Share::kLanesEach;
          all[down][across] =
              Share::kDown < Blocks::kDown ? __shfl_sync(~0u, held, holder, Blocks::kLanes) : held;
        }
      }
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
