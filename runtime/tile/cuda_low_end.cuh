// Codes of elements that are the low end of an 8-bit one, rounded to nearest, by the GPU's
// conversion to that.
#pragma once

#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_wider.cuh"

namespace narrowcast::inline NC_VARIANT {

// `fitted(r, c)`: what is encoded, times kToLowEnd. The rest of the wide type's range is rarely
// met: by an infinity, a NaN, or what a scale that was rounded down leaves above the largest value.
template <class Element, class Fitted>
__device__ __forceinline__ CudaCodes low_end_codes(const Fitted& fitted) {
  using Wide = typename WiderElement<Element>::Type;
  static_assert(Element::kMantissaBits == Wide::kMantissaBits);
  static_assert(Element::kMaxCode == Element::kMagnitude);  // no NaN
  constexpr uint32_t kOwn = in_each_byte(Element::kMagnitude);
  constexpr uint32_t kAbove = in_each_byte(Wide::kMagnitude) - kOwn;
  CudaCodes codes;
  uint32_t all = 0;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    codes.row[r] = encode4<Wide>(fitted(r, 0), fitted(r, 1), fitted(r, 2), fitted(r, 3));
    all |= codes.row[r];
  }
  if ((all & kAbove) != 0) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const uint32_t carried = (codes.row[r] & in_each_byte(Wide::kMagnitude)) + kAbove;
      const uint32_t is_above = carried & in_each_byte(Wide::kSignBit);
      codes.row[r] |= (is_above >> (8 - Element::kBits)) - (is_above >> 7);  // the largest code
    }
  }
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    codes.row[r] = (codes.row[r] & kOwn) |
                   (codes.row[r] >> (8 - Element::kBits) & in_each_byte(Element::kSignBit));
  }
  return codes;
}

}  // namespace narrowcast::inline NC_VARIANT
