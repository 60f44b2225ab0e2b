// Codes of elements that are the low end of an 8-bit one, rounded to nearest, by the GPU's
// conversion to that.
#pragma once

#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_wider.cuh"

namespace narrowcast::inline NC_VARIANT {

// Encodes values that were multiplied by kToLowEnd. The rest of the wide type's range is rarely
// met: by an infinity, a NaN, or what a scale that was rounded down leaves above the largest value.
template <class Element>
struct LowEnd {
  using Wide = typename WiderElement<Element>::Type;
  static_assert(Element::kMantissaBits == Wide::kMantissaBits);
  static_assert(Element::kMaxCode == Element::kMagnitude);  // no NaN
  static constexpr uint32_t kOwn = in_each_byte(Element::kMagnitude);
  static constexpr uint32_t kAbove = in_each_byte(Wide::kMagnitude) - kOwn;
  static constexpr int kShift = 8 - Element::kBits;

  // From four codes of the wide type: those above become the largest.
  __device__ __forceinline__ static uint32_t saturated(uint32_t wide) {
    const uint32_t carried = (wide & in_each_byte(Wide::kMagnitude)) + kAbove;
    const uint32_t is_above = carried & in_each_byte(Wide::kSignBit);
    return wide | ((is_above >> kShift) - (is_above >> 7));
  }
  __device__ __forceinline__ static uint32_t narrowed(uint32_t wide) {
    return (wide & kOwn) | (wide >> kShift & in_each_byte(Element::kSignBit));
  }

  __device__ __forceinline__ static uint32_t encode4(float a, float b, float c, float d) {
    uint32_t wide = narrowcast::encode4<Wide>(a, b, c, d);
    if ((wide & kAbove) != 0) wide = saturated(wide);
    return narrowed(wide);
  }
};

// `fitted(r, c)`: what is encoded, times kToLowEnd.
template <class Element, class Fitted>
__device__ __forceinline__ CudaCodes low_end_codes(const Fitted& fitted) {
  using Low = LowEnd<Element>;
  CudaCodes codes;
  uint32_t all = 0;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    codes.row[r] =
        encode4<typename Low::Wide>(fitted(r, 0), fitted(r, 1), fitted(r, 2), fitted(r, 3));
    all |= codes.row[r];
  }
  if ((all & Low::kAbove) != 0) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) codes.row[r] = Low::saturated(codes.row[r]);
  }
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) codes.row[r] = Low::narrowed(codes.row[r]);
  return codes;
}

}  // namespace narrowcast::inline NC_VARIANT
