// Stored scales between the threads of a CodePlace and a scale buffer.
#pragma once

#include <numeric>

#include "runtime/tile/cuda_code_place.cuh"
#include "runtime/tile/cuda_scale.cuh"

namespace narrowcast::inline NC_VARIANT {

// Scales that lie beside each other are read as one word, where the matrix lets it.
template <Layout kLayout, class Place, int R, int C, class Stored>
__device__ __forceinline__ void load_code_scales(const Place& at, const Stored* source,
                                                 PlacedScales<Place, R, C, Stored>& scales) {
  using Scales = PlacedScales<Place, R, C, Stored>;
  constexpr bool kTransposed = kLayout.scale_transposed;
  constexpr int kStep = kTransposed ? R : C;
  constexpr int64_t kPer = kTransposed ? kLayout.scale_per_rows : kLayout.scale_per_columns;
  constexpr int kRun = kTransposed ? Scales::kDown : Scales::kAcross;
  constexpr int kWord = Place::kFull && kStep == kPer
                            ? std::gcd(std::gcd(kRun, static_cast<int>(kLayout.scale_pad_columns)),
                                       16 / kLayout.scale_bytes)
                            : 1;
  constexpr int kWordDown = kTransposed ? kWord : 1, kWordAcross = kTransposed ? 1 : kWord;
#pragma unroll
  for (int down = 0; down < Scales::kDown; down += kWordDown) {
#pragma unroll
    for (int across = 0; across < Scales::kAcross; across += kWordAcross) {
      const int64_t row = at.row() + down * Scales::kRows;
      const int64_t column = at.column() + across * Scales::kColumns;
      ScaleWord<Stored, kWord> word{};
      if (spans_tensor(kLayout) || at.inside(row, column)) {
        word = *reinterpret_cast<const ScaleWord<Stored, kWord>*>(
            source + scale_index(kLayout, at.matrix, row, column));
      }
#pragma unroll
      for (int i = 0; i < kWord; ++i)
        scales.stored[down + (kTransposed ? i : 0)][across + (kTransposed ? 0 : i)] = word.scale[i];
    }
  }
}

// Where a thread's columns have a scale each in as many stored rows, a load of its own for each of
// them would touch a line of memory for a byte. So threads bring the tile's runs of scales, which
// wait in registers until codes have arrived too, and then meet in shared memory, if they are few
// enough for it.
template <Layout kLayout, class Place>
constexpr bool scales_meet() {
  if constexpr (!kLayout.scale_transposed || spans_tensor(kLayout) || kLayout.block_columns >= 4) {
    return false;
  } else {
    constexpr int kMostStaged = 4096;
    using Runs = ScaleRuns<kLayout, Place>;
    return Runs::kRuns * Runs::kRunLength <= kMostStaged;
  }
}

// Whether to make a multiplier of decoding again costs a thread no more than to read it.
template <class Decoder>
inline constexpr bool kDecodesCheaply = true;
template <class Element>
inline constexpr bool kDecodesCheaply<TwoLevels<Element>> = false;

template <Layout kLayout, class Place, int R, int C, class Stored>
struct MeetingScales {
  using Runs = ScaleRuns<kLayout, Place>;
  using Word = ScaleWord<Stored, Runs::kWord>;
  static constexpr int kWordsOfRun = Runs::kRunLength / Runs::kWord;
  static constexpr int kWords = Runs::kRuns * kWordsOfRun;
  static constexpr int kOfThread = (kWords + Place::kThreads - 1) / Place::kThreads;
  Word word[kOfThread];

  __device__ __forceinline__ void load(const Place& at, const Stored* source) {
    const int64_t pitch = scale_shape(kLayout, at.matrix).columns;
    const Extent first = scale_position(kLayout, at.origin.rows, at.origin.columns);
    const Stored* corner = source + first.rows * pitch + first.columns;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int index = i * Place::kThreads + thread_number();
      if (kWords % Place::kThreads != 0 && index >= kWords) break;
      const Stored* run = corner + index / kWordsOfRun * pitch;
      word[i] = reinterpret_cast<const Word*>(run)[index % kWordsOfRun];
    }
  }

  // As they are stored, and as they came.
  __device__ __forceinline__ PlacedScales<Place, R, C, Stored> settle(const Place& at,
                                                                      uint8_t* stage) const {
    for_each_word([&](int i, int index) { reinterpret_cast<Word*>(stage)[index] = word[i]; });
    __syncthreads();
    return settled<Stored>(at, [&](int row, int run) {
      return reinterpret_cast<const Stored*>(stage)[run * Runs::kRunLength + row];
    });
  }

  // Their multipliers, made by whoever brought a scale, once for all that want it. In the stage
  // they lie row by row, so that a thread's are neighbours, and banks are met evenly.
  template <class Decoder>
  __device__ __forceinline__ PlacedScales<Place, R, C, float> settle_decoded(
      const Place& at, uint8_t* stage, const Decoder& decoder) const {
    float* staged = reinterpret_cast<float*>(stage);
    for_each_word([&](int i, int index) {
      const int run = index / kWordsOfRun, first = index % kWordsOfRun * Runs::kWord;
#pragma unroll
      for (int e = 0; e < Runs::kWord; ++e)
        staged[(first + e) * Runs::kRuns + run] = decoder(word[i].scale[e]);
    });
    __syncthreads();
    return settled<float>(at, [&](int row, int run) { return staged[row * Runs::kRuns + run]; });
  }

 private:
  // Calls action(i, index) for each of the thread's words: its number, and that of all threads'.
  template <class Action>
  __device__ __forceinline__ static void for_each_word(const Action& action) {
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int index = i * Place::kThreads + thread_number();
      if (kWords % Place::kThreads != 0 && index >= kWords) break;
      action(i, index);
    }
  }

  // `staged(row, run)`: what the stage holds of a block.
  template <class Type, class Staged>
  __device__ __forceinline__ static PlacedScales<Place, R, C, Type> settled(const Place& at,
                                                                            const Staged& staged) {
    using Settled = PlacedScales<Place, R, C, Type>;
    Settled scales;
#pragma unroll
    for (int down = 0; down < Settled::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < Settled::kAcross; ++across) {
        const int row = at.row_group * Place::kDown + down * Settled::kRows;
        const int column = at.column_group * Place::kAcross + across * Settled::kColumns;
        scales.stored[down][across] = staged(row / Runs::kPerRows, column / Runs::kPerColumns);
      }
    }
    return scales;
  }
};

// Each block's scale once, from the thread that holds its first element.
template <class Place, int R, int C, class Stored>
__device__ __forceinline__ void stage_code_scales(const Place& at,
                                                  const PlacedScales<Place, R, C, Stored>& scales,
                                                  Stored* staged) {
  using Scales = PlacedScales<Place, R, C, Stored>;
  const int row = at.row_group * Place::kDown, column = at.column_group * Place::kAcross;
  if (row % R != 0 || column % C != 0) return;
  constexpr int kPitch = Place::kColumns / C;
#pragma unroll
  for (int down = 0; down < Scales::kDown; ++down) {
#pragma unroll
    for (int across = 0; across < Scales::kAcross; ++across)
      staged[(row / R + down) * kPitch + column / C + across] = scales.stored[down][across];
  }
}

template <Layout kLayout, class Place, int R, int C, class Stored>
__device__ __forceinline__ void store_code_scales(const Place& at, Stored* target,
                                                  const PlacedScales<Place, R, C, Stored>& scales,
                                                  uint8_t* stage) {
  if constexpr (!spans_tensor(kLayout)) {
    Stored* staged = reinterpret_cast<Stored*>(stage);
    __syncthreads();
    stage_code_scales(at, scales, staged);
    __syncthreads();
    store_staged_scales<kLayout, R, C>(at, target, staged);
  } else if (at.origin == Extent{0, 0} && threadIdx.x == 0) {
    *target = scales.stored[0][0];
  }
}

}  // namespace narrowcast::inline NC_VARIANT
