// Scales from registers to the scale buffers. A scale may be stored more often than once a block,
// and exchanged, so those of a strip meet in shared memory, and are written from there as runs of
// the stored matrix.
#pragma once

#include <numeric>

#include "runtime/tile/cuda_place.cuh"
#include "runtime/tile/cuda_strip.cuh"

namespace narrowcast::inline NC_VARIANT {

// Up to 16 bytes of scales, written at once.
template <class Stored, int kCount>
struct alignas(sizeof(Stored) * kCount) ScaleWord {
  Stored scale[kCount];
};

// How the scales of kTiles tiles, one below the other, lie in the stored matrix: `kRuns` rows, each
// with kRunLength consecutive entries.
template <Layout kLayout, class Place, int kTiles = 1>
struct ScaleRuns {
  static constexpr int kPerRows = static_cast<int>(kLayout.scale_per_rows);
  static constexpr int kPerColumns = static_cast<int>(kLayout.scale_per_columns);
  static constexpr int kDown = kTiles * Place::kRows / kPerRows;
  static constexpr int kAcross = Place::kColumns / kPerColumns;
  static constexpr int kRuns = kLayout.scale_transposed ? kAcross : kDown;
  static constexpr int kRunLength = kLayout.scale_transposed ? kDown : kAcross;
  // Entries that may be written as one word: what divides the run, the padded rows and 16 bytes.
  static constexpr int kWord = std::gcd(
      std::gcd(kRunLength, static_cast<int>(kLayout.scale_pad_columns)), 16 / kLayout.scale_bytes);
};

// Each block's scale once, from the first thread that holds it, as tile `step`'s of the strip.
template <class Place, class Stage, class Share, class Stored>
__device__ __forceinline__ void stage_scales(const Place& at, Stage& stage, int step,
                                             const CudaScales<Share, Stored>& scales) {
  if (!Share::is_first(at.lane, at.warp)) return;
  const int row = step * Place::kRows + at.warp * kThreadRows;
  const int column = at.lane * kThreadColumns / Share::kBlockColumns + Share::across(at.warp);
  Stored* staged = stage.of_row(row) + Share::down(at.lane) * Stage::kPitch + column;
#pragma unroll
  for (int down = 0; down < Share::kDown; ++down) {
#pragma unroll
    for (int across = 0; across < Share::kAcross; ++across)
      staged[down * Stage::kPitch + across] = scales.stored[down][across];
  }
}

// From shared memory, where the R x C blocks of kTiles tiles have one scale each, to the stored
// matrix; `at`: the first of them.
template <Layout kLayout, int R, int C, int kTiles = 1, class Place, class Stored>
__device__ __forceinline__ void store_staged_scales(const Place& at, Stored* target,
                                                    const Stored* staged) {
  using Runs = ScaleRuns<kLayout, Place, kTiles>;
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

}  // namespace narrowcast::inline NC_VARIANT
