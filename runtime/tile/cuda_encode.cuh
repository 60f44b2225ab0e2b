// Four elements to four codes in a word, the first in the low byte. Each way gives the bits of the
// element's own portable `encode`, in fewer instructions.
#pragma once

#include <cuda_fp8.h>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/rounding.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Element>
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d) {
  return Element::encode(a) | Element::encode(b) << 8 | Element::encode(c) << 16 |
         Element::encode(d) << 24;
}

__device__ __forceinline__ constexpr uint32_t in_each_byte(uint32_t byte) {
  return byte * 0x01010101;
}

// e2m1: as a function of the magnitude, the code is straight within each binade and bends down
// between them, so it is the least of the straight lines. Adding 2^23 leaves a line's nearest
// integer, ties to even, in the low bits, and the least stays the least.
template <class Element>
__device__ __forceinline__ uint32_t least_line(float magnitude) {
  constexpr int kBinades = static_cast<int>(Element::kMaxCode >> Element::kMantissaBits);
  constexpr float kFirstSlope = power_of_two(Element::kBias - 1 + Element::kMantissaBits);
  float least = fused_multiply_add(magnitude, kFirstSlope, 8388608.0f);
#pragma unroll
  for (int binade = 1; binade < kBinades; ++binade) {
    const float start = 8388608.0f + static_cast<float>(binade << Element::kMantissaBits);
    const float slope = kFirstSlope * power_of_two(-binade);
    least = fminf(least, fused_multiply_add(magnitude, slope, start));
  }
  return bits_of(least);
}

// Of words whose second byte is 0. Multiply-adds run beside the minima; permutations would wait for
// them.
__device__ __forceinline__ uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(a + b * 256, c + d * 256, 0x5410);
}
__device__ __forceinline__ uint32_t high_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

// A NaN's code has no sign. Here its sign is plus already: what is encoded is a product, and the
// GPU's products that are NaN are all 0x7fffffff (PTX ISA, "Floating point instructions").
template <>
__device__ __forceinline__ uint32_t encode4<E2M1>(float a, float b, float c, float d) {
  const auto code = [](float x) { return least_line<E2M1>(at_most(fabsf(x), E2M1::kMax)); };
  const uint32_t codes = low_bytes(code(a), code(b), code(c), code(d));
  const uint32_t signs = high_bytes(bits_of(a), bits_of(b), bits_of(c), bits_of(d));
  return codes | (signs >> (8 - E2M1::kBits) & in_each_byte(E2M1::kSignBit));
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

// A type is the low end of one with as many mantissa bits and a wider exponent, subnormals
// included.
template <class Element, class Wide>
__device__ __forceinline__ uint32_t encode4_as_low_end(float a, float b, float c, float d) {
  static_assert(Element::kMantissaBits == Wide::kMantissaBits);
  const auto fit = [](float x) {
    return at_least(at_most(x, Element::kMax), -Element::kMax) *
           power_of_two(Element::kBias - Wide::kBias);
  };
  const uint32_t codes = encode4<Wide>(fit(a), fit(b), fit(c), fit(d));
  return (codes & in_each_byte(Element::kMagnitude)) |
         (codes >> (8 - Element::kBits) & in_each_byte(Element::kSignBit));
}
template <>
__device__ __forceinline__ uint32_t encode4<E2M3>(float a, float b, float c, float d) {
  return encode4_as_low_end<E2M3, E4M3>(a, b, c, d);
}
template <>
__device__ __forceinline__ uint32_t encode4<E3M2>(float a, float b, float c, float d) {
  return encode4_as_low_end<E3M2, E5M2>(a, b, c, d);
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

}  // namespace narrowcast::inline NC_VARIANT
