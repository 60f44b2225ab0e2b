// Four codes in a word: made, packed and exchanged. Hardware conversions stand in where the
// architecture has one that gives the same bits as the portable text.
#pragma once

#include <cuda_fp8.h>

#include "runtime/numeric/int8.hpp"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

template <class Element>
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d) {
  return Element::encode(a) | Element::encode(b) << 8 | Element::encode(c) << 16 |
         Element::encode(d) << 24;
}

#if __CUDA_ARCH__ >= 890
template <__nv_fp8_interpretation_t kType>
__device__ __forceinline__ uint32_t convert4(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kType);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kType);
  return low | high << 16;
}
template <>
__device__ __forceinline__ uint32_t encode4<E4M3>(float a, float b, float c, float d) {
  return convert4<__NV_E4M3>(a, b, c, d);
}
template <>
__device__ __forceinline__ uint32_t encode4<E5M2>(float a, float b, float c, float d) {
  return convert4<__NV_E5M2>(a, b, c, d);
}
#endif

// Four codes of consecutive elements; `offset`: of the first one in the matrix.
template <class Element>
__device__ __forceinline__ uint32_t encode4(const float (&scaled)[4], Nearest, int64_t) {
  return encode4<Element>(scaled[0], scaled[1], scaled[2], scaled[3]);
}

// The four elements may lie in two groups of the whole tensor's.
template <class Element>
__device__ __forceinline__ uint32_t encode4(const float (&scaled)[4], const Stochastic& rounding,
                                            int64_t offset) {
  const uint64_t index = rounding.first + static_cast<uint64_t>(offset);
  const int skipped = static_cast<int>(index % 4);
  PhiloxWords random = rounding.words(index / 4);
  if (skipped != 0) {
    const PhiloxWords next = rounding.words(index / 4 + 1);
    const PhiloxWords first = random;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int from = 0; from < 8; ++from) {
        if (from == i + skipped) random.word[i] = from < 4 ? first.word[from] : next.word[from - 4];
      }
    }
  }
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) codes |= Element::encode(scaled[i], random.word[i]) << 8 * i;
  return codes;
}

// Four codes of kBits, from one a byte to a dense string of 4 * kBits bits, and back.
template <int kBits>
__device__ __forceinline__ uint32_t pack4(uint32_t codes) {
  if constexpr (kBits == 8) return codes;
  if constexpr (kBits == 4) return __byte_perm(codes | codes >> 4, 0, 0x4420);
  if constexpr (kBits == 6) {
    const uint32_t pairs = (codes & 0x003f003f) | (codes & 0x3f003f00) >> 2;
    return (pairs & 0xfff) | (pairs >> 4 & 0xfff000);
  }
}

template <int kBits>
__device__ __forceinline__ uint32_t unpack4(uint32_t packed) {
  if constexpr (kBits == 8) return packed;
  if constexpr (kBits == 4) {
    const uint32_t spread = (packed & 0xff) | (packed & 0xff00) << 8;
    return (spread & 0x000f000f) | (spread & 0x00f000f0) << 4;
  }
  if constexpr (kBits == 6) {
    const uint32_t pairs = (packed & 0xfff) | (packed & 0xfff000) << 4;
    return (pairs & 0x003f003f) | (pairs & 0x0fc00fc0) << 2;
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

}  // namespace narrowcast::inline NC_VARIANT
