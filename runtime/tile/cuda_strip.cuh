// The shared memory of a strip: tiles one below the other, which a thread block casts one after the
// other. What lies along the matrix's columns waits here until all of them are cast, and so do
// their scales. Then each is written in long runs; a tile alone would write a few bytes of many
// sectors, and memory takes a sector of two bytes no faster than a whole one.
#pragma once

#include <algorithm>

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

// A thread's codes of a column in one word, or in words of half of them.
template <int kBits>
struct CodeWord {
  using Type = uint32_t;
};
template <>
struct CodeWord<8> {
  using Type = uint64_t;
};

// Codes of a usage whose rows are the matrix's columns. All columns of a lane lie together, and
// have a word more than they need: so 32 lanes that write one column each, and 32 threads that read
// a column, meet different banks.
template <int kBits, bool kUsed, int kRows>
struct StripCodes {
  using Word = typename CodeWord<kBits>::Type;
  static constexpr int kWordBits = 8 * sizeof(Word);
  static constexpr int kWords = kRows * kBits / kWordBits;    // of a column
  static constexpr int kPitch = kWords * kThreadColumns + 1;  // of a lane, in words
  Word word[kUsed ? kPitch * kWarpSize : 1];

  __device__ __forceinline__ Word* column(int lane, int column) {
    return word + lane * kPitch + column * kWords;
  }
};

// A scale for each block, row by row.
template <Layout kLayout, class Stored, int kRows>
struct StripScales {
  static constexpr bool kUsed = !spans_tensor(kLayout);
  static constexpr int kBlockRows = kUsed ? kLayout.block_rows : kRows;
  static constexpr int kBlockColumns = kUsed ? kLayout.block_columns : kWarpColumns;
  static constexpr int kPitch = kWarpColumns / kBlockColumns;  // blocks
  Stored scale[kRows / kBlockRows * kPitch];

  __device__ __forceinline__ Stored* of_row(int row) { return scale + row / kBlockRows * kPitch; }
};

// What warps tell each other of a usage's blocks (cuda_amax.cuh), in floats: the maxima of each
// thread's columns, and a multiplier of each block that they share.
constexpr int exchanged_maxima(const Layout& layout, int warps) {
  if (layout.block_rows <= kThreadRows) return 0;  // or the tensor's
  return warps * kWarpSize * static_cast<int>(ceil_div(kThreadColumns, layout.block_columns));
}
constexpr int exchanged_multipliers(const Layout& layout, int warps) {
  if (layout.block_rows <= kThreadRows) return 0;
  return exchanged_maxima(layout, warps) / (static_cast<int>(layout.block_rows) / kThreadRows);
}

template <class Format, int kTileCount>
struct alignas(16) Strip {
  using Stored = typename Format::ScaleType::Stored;
  static constexpr int kTiles = kTileCount, kTileRows = Format::kTileRows;
  static constexpr int kRows = kTiles * kTileRows, kWarps = kTileRows / kThreadRows;
  static constexpr int kMaxima = std::max(exchanged_maxima(Format::kRowwise, kWarps),
                                          exchanged_maxima(Format::kColumnwise, kWarps));
  static constexpr int kMultipliers = std::max(exchanged_multipliers(Format::kRowwise, kWarps),
                                               exchanged_multipliers(Format::kColumnwise, kWarps));

  static constexpr int kElementBits = Format::kRowwise.element_bits;
  static constexpr bool kPowerOfTwo = Format::ScaleType::kPowerOfTwo;  // every scale is one
  // Whether codes of rowwise bytes are written before columnwise ones are staged, in their place:
  // both may be more than the shared memory that every GPU gives a block.
  static constexpr bool kTakeTurns =
      kTiles == 1 && Format::kRowwise.transposed && Format::kColumnwise.transposed;

  // Apart: maxima of one usage come while the multipliers of the other may still be read.
  float maxima[kMaxima + 1], multipliers[kMultipliers + 1];
  StripCodes<kElementBits, Format::kRowwise.transposed && !kTakeTurns, kRows> rowwise_codes;
  StripCodes<kElementBits, Format::kColumnwise.transposed, kRows> columnwise_codes;
  StripScales<Format::kRowwise, Stored, kRows> rowwise_scales;
  StripScales<Format::kColumnwise, Stored, kRows> columnwise_scales;

  template <Usage kUsage>
  __device__ __forceinline__ auto& codes() {
    if constexpr (kUsage == Usage::kRowwise && !kTakeTurns) {
      return rowwise_codes;
    } else {
      return columnwise_codes;
    }
  }
  template <Usage kUsage>
  __device__ __forceinline__ auto& scales() {
    if constexpr (kUsage == Usage::kRowwise) {
      return rowwise_scales;
    } else {
      return columnwise_scales;
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
