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

// The random words of four consecutive elements, which may lie in two groups of the whole tensor's.
__device__ __forceinline__ PhiloxWords random4(const Stochastic& rounding, int64_t offset) {
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
  return random;
}

template <class Element>
__device__ __forceinline__ uint32_t encode4(const float (&scaled)[4], const Stochastic& rounding,
                                            int64_t offset) {
  const PhiloxWords random = random4(rounding, offset);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) codes |= Element::encode(scaled[i], random.word[i]) << 8 * i;
  return codes;
}

}  // namespace narrowcast::inline NC_VARIANT
