// Scales from registers to the scale buffers. A scale may be stored more often than once a
// block, and exchanged, so the tile's scales meet in shared memory, and are written from there as
// runs of the stored matrix.
#pragma once

#include <numeric>

#include "runtime/tile/cuda_place.cuh"

namespace narrowcast::inline NC_VARIANT {

// Up to 16 bytes of scales, written at once.
template <class Stored, int kCount>
struct alignas(sizeof(Stored) * kCount) ScaleWord {
  Stored scale[kCount];
};

// How the scales of a whole tile lie in the stored matrix: `kRuns` rows, each with kRunLength
// consecutive entries.
template <Layout kLayout, class Place>
struct ScaleRuns {
  static constexpr int kPerRows = static_cast<int>(kLayout.scale_per_rows);
  static constexpr int kPerColumns = static_cast<int>(kLayout.scale_per_columns);
  static constexpr int kDown = Place::kRows / kPerRows, kAcross = Place::kColumns / kPerColumns;
  static constexpr int kRuns = kLayout.scale_transposed ? kAcross : kDown;
  static constexpr int kRunLength = kLayout.scale_transposed ? kDown : kAcross;
  // Entries that may be written as one word: what divides the run, the padded rows and 16 bytes.
  static constexpr int kWord = std::gcd(
      std::gcd(kRunLength, static_cast<int>(kLayout.scale_pad_columns)), 16 / kLayout.scale_bytes);
};

// Each block's scale once, from the first thread that holds it.
template <class Share, class Place, class Stored>
__device__ __forceinline__ void stage_scales(const Place& at,
                                             const CudaScales<Share, Stored>& scales) {
  if (!Share::is_first(at.lane, at.warp)) return;
  constexpr int kPitch = Place::kColumns / Share::kBlockColumns;
  const int first_row = at.warp * kThreadRows / Share::kBlockRows + Share::down(at.lane);
  const int first_column = at.lane * kThreadColumns / Share::kBlockColumns + Share::across(at.warp);
  Stored* staged = reinterpret_cast<Stored*>(at.stage) + first_row * kPitch + first_column;
#pragma unroll
  for (int down = 0; down < Share::kDown; ++down) {
#pragma unroll
    for (int across = 0; across < Share::kAcross; ++across)
      staged[down * kPitch + across] = scales.stored[down][across];
  }
}

// From shared memory, where the tile's R x C blocks have one scale each, to the stored matrix.
template <Layout kLayout, int R, int C, class Place, class Stored>
__device__ __forceinline__ void store_staged_scales(const Place& at, Stored* target,
                                                    const Stored* staged) {
  using Runs = ScaleRuns<kLayout, Place>;
  constexpr int kWord = Place::kFull ? Runs::kWord : 1;
  constexpr int kWords = Runs::kRuns * (Runs::kRunLength / kWord);
  const int64_t pitch = scale_shape(kLayout, at.matrix).columns;
  const Extent first = scale_position(kLayout, at.origin.rows, at.origin.columns);
  Stored* corner = target + first.rows * pitch + first.columns;
#pragma unroll
  for (int i = 0; i < (kWords + Place::kThreads - 1) / Place::kThreads; ++i) {
    const int index = i * Place::kThreads + thread_number();
    if (kWords % Place::kThreads != 0 && index >= kWords) break;
    const int run = index / (Runs::kRunLength / kWord),
              entry = index % (Runs::kRunLength / kWord) * kWord;
    ScaleWord<Stored, kWord> word;
#pragma unroll
    for (int e = 0; e < kWord; ++e) {
      const int row = (kLayout.scale_transposed ? entry + e : run) * Runs::kPerRows;
      const int column = (kLayout.scale_transposed ? run : entry + e) * Runs::kPerColumns;
      if (!at.template touches_block_of<R, C>(row, column)) continue;
      word.scale[e] = staged[row / R * (Place::kColumns / C) + column / C];
      if constexpr (!Place::kFull) corner[run * pitch + entry + e] = word.scale[e];
    }
    if constexpr (Place::kFull)
      *reinterpret_cast<ScaleWord<Stored, kWord>*>(corner + run * pitch + entry) = word;
  }
}

template <Layout kLayout, class Share, class Place, class Stored>
__device__ __forceinline__ void store_block_scales(const Place& at, Stored* target,
                                                   const CudaScales<Share, Stored>& scales) {
  __syncthreads();
  stage_scales(at, scales);
  __syncthreads();
  store_staged_scales<kLayout, Share::kBlockRows, Share::kBlockColumns>(
      at, target, reinterpret_cast<const Stored*>(at.stage));
}

// The one scale of a tensor comes from the first tile, which every tensor has.
template <Layout kLayout, class Share, class Place, class Stored>
__device__ __forceinline__ void store_scales(const Place& at, Stored* target,
                                             const CudaScales<Share, Stored>& scales) {
  if constexpr (!spans_tensor(kLayout)) {
    store_block_scales<kLayout>(at, target, scales);
  } else if (at.is_first && threadIdx.x == 0) {
    *target = scales.stored[0][0];
  }
}

}  // namespace narrowcast::inline NC_VARIANT
