// Codes from registers to a data buffer whose rows are the matrix's columns: through the shared
// memory of a strip, so that the rows of all warps and tiles become one run in each stored row.
#pragma once

#include "runtime/tile/cuda_data.cuh"
#include "runtime/tile/cuda_string.cuh"
#include "runtime/tile/cuda_strip.cuh"

namespace narrowcast::inline NC_VARIANT {

// A thread's codes, those of tile `step` of the strip. Of six bits, its eight of a column are no
// word but three halves.
template <Layout kLayout, class Place, class Stage, class Codes>
__device__ __forceinline__ void stage_codes(const Place& at, Stage& stage, int step,
                                            const Codes& codes) {
  constexpr int kBits = kLayout.element_bits;
  uint64_t columns[kThreadColumns];
  codes.template column_strings<kBits>(columns);
  const int run = step * Place::kWarps + at.warp;
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    auto* column = stage.column(at.lane, c);
    if constexpr (kBits == 6) {
#pragma unroll
      for (int h = 0; h < 3; ++h)
        reinterpret_cast<uint16_t*>(column)[run * 3 + h] =
            static_cast<uint16_t>(columns[c] >> 16 * h);
    } else {
      column[run] = static_cast<typename Stage::Word>(columns[c]);
    }
  }
}

// Bytes of a column's codes, from byte `first` of the tile's on. Of those that the launch does not
// own entirely it writes whichever hold a code of its own.
template <int kBits, int kBytes, class Place>
__device__ __forceinline__ void store_run(const Place& at, uint8_t* target, uint64_t string,
                                          int first) {
  const auto row_of = [&](int bit) { return (first * 8 + bit) / kBits; };
  const auto owns = [&](int bit) { return at.owns_row(row_of(bit)); };
  constexpr int kLast = kBytes * 8 - 1;
  if (!at.touches_rows(row_of(0), row_of(kLast))) return;
  if (owns(0) && owns(kLast)) return store_string<kBytes>(target, string);
#pragma unroll 1
  for (int b = 0; b < kBytes; ++b) {
    if (owns(b * 8) || owns(b * 8 + 7)) target[b] = static_cast<uint8_t>(string >> 8 * b);
  }
}

// What is staged of `kTiles` tiles, the first of them, `step`, at this place; in whole words, where
// the matrix lets them be.
template <Layout kLayout, int kTiles, class Place, class Stage>
__device__ __forceinline__ void write_codes(const Place& at, uint8_t* bytes, Stage& stage,
                                            int step) {
  constexpr int kBits = kLayout.element_bits, kBytes = sizeof(typename Stage::Word);
  constexpr int kWordsOfTile = Place::kRows * kBits / Stage::kWordBits;
  constexpr int kWords = kTiles * kWordsOfTile;  // of a column
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  uint8_t* target =
      bytes + element_position(kLayout, at.matrix, at.origin.rows, at.origin.columns).byte;
#pragma unroll 4
  for (int i = 0; i < Place::kColumns * kWords / Place::kThreads; ++i) {
    const int index = i * Place::kThreads + thread_number();
    const int column = index / kWords, word = index % kWords;
    const auto* run = stage.column(column / kThreadColumns, column % kThreadColumns);
    store_run<kBits, kBytes>(at, target + column * pitch + word * kBytes,
                             run[step * kWordsOfTile + word], word * kBytes);
  }
}

// Byte by byte: each thread writes those of its own columns.
template <Layout kLayout, class Place, class Codes>
__device__ __forceinline__ void store_column_bytes(const Place& at, uint8_t* bytes,
                                                   const Codes& codes) {
  constexpr int kBits = kLayout.element_bits;
  uint64_t columns[kThreadColumns];
  codes.template column_strings<kBits>(columns);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column() + c).byte;
#pragma unroll
    for (int b = 0; b < kBits; ++b) {
      if (at.owns(first_in_byte<kBits>(b), c) || at.owns(last_in_byte<kBits>(b), c))
        target[b] = static_cast<uint8_t>(columns[c] >> 8 * b);
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
