// Codes between the threads of a CodePlace and a data buffer whose rows are the matrix's columns:
// through shared memory, so that the tile's part of a stored row is one run.
#pragma once

#include "runtime/tile/cuda_code_place.cuh"
#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_string.cuh"

namespace narrowcast::inline NC_VARIANT {

// How the runs lie in shared memory: behind the columns of each thread 8 bytes are left free, so
// that the threads of a warp meet different banks.
template <Layout kLayout, class Place>
struct CodeStage {
  static constexpr int kRunBytes = Place::kRows * kLayout.element_bits / 8;
  static constexpr int kBytes = Place::kColumns * kRunBytes + Place::kThreadsOfRow * 8;
  __device__ __forceinline__ static int offset(int column) {
    return column * kRunBytes + column / Place::kAcross * 8;
  }
};

// The words of a whole tile's runs. Neighbours in a run are neighbours in a warp.
template <Layout kLayout, class Place>
struct RunWords {
  using Word = uint64_t;
  static constexpr int kBytes = sizeof(Word);
  static constexpr int kOfRun = CodeStage<kLayout, Place>::kRunBytes / kBytes;
  static constexpr int kCount = Place::kColumns * kOfRun / Place::kThreads;  // of a thread
  static_assert(kCount * Place::kThreads == Place::kColumns * kOfRun);

  // Calls action(i, byte, staged) for each of the thread's words: it lies at `byte` of the stored
  // matrix, counted from the tile's first, and at `staged` of the stage. From one word to the next
  // by additions: a run of 6-bit codes is no power of two of words, and divisions would be many.
  template <class Action>
  __device__ __forceinline__ static void for_each(int64_t pitch, const Action& action) {
    constexpr int kColumns = Place::kThreads / kOfRun, kWords = Place::kThreads % kOfRun;
    int column = thread_number() / kOfRun, word = thread_number() % kOfRun;
    int64_t byte = column * pitch + word * kBytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      action(i, byte, CodeStage<kLayout, Place>::offset(column) + word * kBytes);
      column += kColumns;
      word += kWords;
      byte += kColumns * pitch + kWords * kBytes;
      if (kWords == 0 || word < kOfRun) continue;
      ++column;
      word -= kOfRun;
      byte += pitch - kOfRun * kBytes;
    }
  }
};

// Whether every stored row begins and ends with a word.
template <Layout kLayout>
__device__ __forceinline__ bool has_run_words(Extent matrix) {
  return !kLayout.transposed || data_row_bytes(kLayout, matrix) % sizeof(uint64_t) == 0;
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void stage_from_memory(const Place& at, const uint8_t* bytes,
                                                  uint8_t* stage) {
  using Words = RunWords<kLayout, Place>;
  using Word = typename Words::Word;
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  const uint8_t* first =
      bytes + element_position(kLayout, at.matrix, at.origin.rows, at.origin.columns).byte;
  Word words[Words::kCount];
  Words::for_each(pitch, [&](int i, int64_t byte, int) {
    words[i] = *reinterpret_cast<const Word*>(first + byte);
  });
  Words::for_each(pitch, [&](int i, int64_t, int staged) {
    *reinterpret_cast<Word*>(stage + staged) = words[i];
  });
  __syncthreads();
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void stage_to_memory(const Place& at, uint8_t* bytes,
                                                const uint8_t* stage) {
  using Words = RunWords<kLayout, Place>;
  using Word = typename Words::Word;
  __syncthreads();
  uint8_t* first =
      bytes + element_position(kLayout, at.matrix, at.origin.rows, at.origin.columns).byte;
  Words::for_each(data_row_bytes(kLayout, at.matrix), [&](int, int64_t byte, int staged) {
    *reinterpret_cast<Word*>(first + byte) = *reinterpret_cast<const Word*>(stage + staged);
  });
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void load_code_columns(const Place& at, const uint8_t* bytes,
                                                  uint8_t* stage, PlacedCodes<Place>& codes) {
  constexpr int kBits = kLayout.element_bits, kBytes = Place::kDown * kBits / 8;
  if constexpr (Place::kFull) stage_from_memory<kLayout>(at, bytes, stage);
  uint64_t strings[Place::kAcross];
#pragma unroll
  for (int c = 0; c < Place::kAcross; ++c) {
    if constexpr (Place::kFull) {
      const int column = at.column_group * Place::kAcross + c;
      strings[c] = load_string<kBytes>(stage + CodeStage<kLayout, Place>::offset(column) +
                                       at.row_group * kBytes);
    } else {
      const int64_t column = at.column() + c;
      strings[c] = load_string_at_edge<kBits, kBytes>(
          bytes + element_position(kLayout, at.matrix, at.row(), column).byte,
          [&](int i) { return at.inside(at.row() + i, column); });
    }
  }
#pragma unroll
  for (int r = 0; r < Place::kDown; r += 4) {
#pragma unroll
    for (int c = 0; c < Place::kAcross; c += 4) {
      uint32_t square[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        square[i] = unpack4<kBits>(static_cast<uint32_t>(strings[c + i] >> kBits * r));
      exchange4x4(square[0], square[1], square[2], square[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) codes.row[r + i][c / 4] = square[i];
    }
  }
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void store_code_columns(const Place& at, uint8_t* bytes, uint8_t* stage,
                                                   const PlacedCodes<Place>& codes) {
  constexpr int kBits = kLayout.element_bits, kBytes = Place::kDown * kBits / 8;
  uint64_t strings[Place::kAcross] = {};
#pragma unroll
  for (int r = 0; r < Place::kDown; r += 4) {
#pragma unroll
    for (int c = 0; c < Place::kAcross; c += 4) {
      uint32_t square[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) square[i] = codes.row[r + i][c / 4];
      exchange4x4(square[0], square[1], square[2], square[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        strings[c + i] |= static_cast<uint64_t>(pack4<kBits>(square[i])) << kBits * r;
    }
  }
#pragma unroll
  for (int c = 0; c < Place::kAcross; ++c) {
    if constexpr (Place::kFull) {
      const int column = at.column_group * Place::kAcross + c;
      store_string<kBytes>(
          stage + CodeStage<kLayout, Place>::offset(column) + at.row_group * kBytes, strings[c]);
    } else {
      const int64_t column = at.column() + c;
      store_string_at_edge<kBits, kBytes>(
          bytes + element_position(kLayout, at.matrix, at.row(), column).byte, strings[c],
          [&](int i) { return at.inside(at.row() + i, column); });
    }
  }
  if constexpr (Place::kFull) stage_to_memory<kLayout>(at, bytes, stage);
}

}  // namespace narrowcast::inline NC_VARIANT
