// Codes between the threads of a CodePlace and a data buffer whose rows are the matrix's.
#pragma once

#include "runtime/tile/cuda_code_place.cuh"
#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_string.cuh"

namespace narrowcast::inline NC_VARIANT {

template <Layout kLayout, class Place>
__device__ __forceinline__ void load_code_rows(const Place& at, const uint8_t* bytes,
                                               PlacedCodes<Place>& codes) {
  constexpr int kBits = kLayout.element_bits, kBytes = Place::kAcross * kBits / 8;
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  const uint8_t* source = bytes + element_position(kLayout, at.matrix, at.row(), at.column()).byte;
  uint64_t strings[Place::kDown];
#pragma unroll
  for (int r = 0; r < Place::kDown; ++r, source += pitch) {
    if constexpr (Place::kFull) {
      strings[r] = load_string<kBytes>(source);
    } else {
      strings[r] = load_string_at_edge<kBits, kBytes>(
          source, [&](int i) { return at.inside(at.row() + r, at.column() + i); });
    }
  }
#pragma unroll
  for (int r = 0; r < Place::kDown; ++r) {
#pragma unroll
    for (int four = 0; four < Place::kAcross / 4; ++four)
      codes.row[r][four] = unpack4<kBits>(static_cast<uint32_t>(strings[r] >> 4 * kBits * four));
  }
}

template <Layout kLayout, class Place>
__device__ __forceinline__ void store_code_rows(const Place& at, uint8_t* bytes,
                                                const PlacedCodes<Place>& codes) {
  constexpr int kBits = kLayout.element_bits, kBytes = Place::kAcross * kBits / 8;
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column()).byte;
#pragma unroll
  for (int r = 0; r < Place::kDown; ++r, target += pitch) {
    uint64_t string = 0;
#pragma unroll
    for (int four = 0; four < Place::kAcross / 4; ++four)
      string |= static_cast<uint64_t>(pack4<kBits>(codes.row[r][four])) << 4 * kBits * four;
    if constexpr (Place::kFull) {
      store_string<kBytes>(target, string);
    } else {
      store_string_at_edge<kBits, kBytes>(
          target, string, [&](int i) { return at.inside(at.row() + r, at.column() + i); });
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
