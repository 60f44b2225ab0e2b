// Codes from registers to a data buffer whose rows are the matrix's.
#pragma once

#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_place.cuh"

namespace narrowcast::inline NC_VARIANT {

// Four packed codes, at a multiple of 4 elements of a stored row.
template <int kBits>
__device__ __forceinline__ void store_word(uint8_t* target, uint32_t packed) {
  if constexpr (kBits == 8) *reinterpret_cast<uint32_t*>(target) = packed;
  if constexpr (kBits == 4) *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(packed);
}

// Of six bits each, four lanes hold 12 bytes: the first three of them write a word each, filled up
// from the next lane.
template <class Place, class Codes>
__device__ __forceinline__ void store_words_of_six(const Place& at, uint8_t* bytes, int64_t pitch,
                                                   const Codes& codes) {
  const int part = at.lane % 4;
  uint32_t chosen = 0x654210u >> 4 * part & 0x7777;
  asm volatile("" : "+r"(chosen));  // kept; the compiler would make it anew for each row
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r, bytes += pitch) {
    const uint32_t packed = codes.template row_string<6>(r);
    const uint32_t next = __shfl_down_sync(~0u, packed, 1);
    const uint32_t word = __byte_perm(packed, next, chosen);
    if (at.owns(r, 0) && part < 3) reinterpret_cast<uint32_t*>(bytes + part)[0] = word;
  }
}

// Byte b of a run of packed codes: whoever has an element of it writes all of it.
template <int kBits>
__device__ __forceinline__ constexpr int first_in_byte(int b) {
  return b * 8 / kBits;
}
template <int kBits>
__device__ __forceinline__ constexpr int last_in_byte(int b) {
  return (b * 8 + 7) / kBits;
}

template <int kBits, class Place>
__device__ __forceinline__ void store_row(const Place& at, uint8_t* target, uint32_t packed,
                                          int r) {
  if (kBits != 6 && at.has_words) {
    if (at.owns(r, 0)) store_word<kBits>(target, packed);
  } else {
#pragma unroll
    for (int b = 0; b < kBits / 2; ++b) {
      if (at.owns(r, first_in_byte<kBits>(b)) || at.owns(r, last_in_byte<kBits>(b)))
        target[b] = static_cast<uint8_t>(packed >> 8 * b);
    }
  }
}

template <Layout kLayout, class Place, class Codes>
__device__ __forceinline__ void store_rows(const Place& at, uint8_t* bytes, const Codes& codes) {
  constexpr int kBits = kLayout.element_bits;
  const int64_t pitch = data_row_bytes(kLayout, at.matrix);
  uint8_t* target = bytes + element_position(kLayout, at.matrix, at.row(), at.column()).byte;
  if constexpr (kBits == 6 && Place::kOwned != Owned::kSome) {
    store_words_of_six(at, target, pitch, codes);
  } else {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r, target += pitch)
      store_row<kBits>(at, target, codes.template row_string<kBits>(r), r);
  }
}

}  // namespace narrowcast::inline NC_VARIANT
