// Four codes in a word, packed and exchanged; and the codes of a thread.
#pragma once

#include <cstdint>

#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

// Four codes of kBits, from one a byte to a dense string of 4 * kBits bits, and back. Where a shift
// can be a product it is one: shifts and logic share a pipe that casts keep busy, and products have
// another, of twice the width.
template <int kBits>
__device__ __forceinline__ uint32_t pack4(uint32_t codes) {
  if constexpr (kBits == 8) return codes;
  constexpr uint32_t kPair = 1 | 1u << (8 + kBits);  // what the two bytes of a pair count
  const uint32_t low = __dp4a(codes, kPair, 0u), high = __dp4a(codes, kPair << 16, 0u);
  return low + high * (1u << 2 * kBits);
}

template <int kBits>
__device__ __forceinline__ uint32_t unpack4(uint32_t packed) {
  if constexpr (kBits == 8) return packed;
  if constexpr (kBits == 4) {
    const uint32_t spread = __byte_perm(packed, 0, 0x4140);
    return (spread | spread << 4) & 0x0f0f0f0f;
  }
  if constexpr (kBits == 6) {
    const uint32_t string = packed & 0xffffff;
    const uint32_t pairs = string + (string & 0xfff000) * 15;  // the upper one 4 bits further up
    return pairs + (pairs & 0x0fc00fc0) * 3;                   // upper codes 2 bits further up
  }
}

// Rows and columns of a 4 x 4 square of bytes.
__device__ __forceinline__ void exchange4x4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

// A thread's codes, four a row, one a byte, the first in the low byte.
struct CudaCodes {
  uint32_t row[kThreadRows];

  // The codes of a row, packed: 4 * kBits bits, and zeros.
  template <int kBits>
  __device__ __forceinline__ uint32_t row_string(int r) const {
    return pack4<kBits>(row[r]);
  }

  // Those of each column: 8 * kBits bits, and zeros.
  template <int kBits>
  __device__ __forceinline__ void column_strings(uint64_t (&columns)[kThreadColumns]) const {
    uint32_t low[4] = {row[0], row[1], row[2], row[3]};
    uint32_t high[4] = {row[4], row[5], row[6], row[7]};
    exchange4x4(low[0], low[1], low[2], low[3]);
    exchange4x4(high[0], high[1], high[2], high[3]);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      columns[c] = pack4<kBits>(low[c]) | static_cast<uint64_t>(pack4<kBits>(high[c])) << 4 * kBits;
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
