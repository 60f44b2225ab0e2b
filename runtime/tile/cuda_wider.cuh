// Elements that are the low end of an 8-bit one: as many mantissa bits, and a narrower exponent
// (e2m3 of e4m3, e3m2 of e5m2). What the GPU converts by itself serves them, too; and e2m1, whose
// mantissa is shorter, where nothing is rounded.
#pragma once

#include "runtime/numeric/small_float.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Element>
struct WiderElement;
template <>
struct WiderElement<E2M3> {
  using Type = E4M3;
};
template <>
struct WiderElement<E3M2> {
  using Type = E5M2;
};

template <>
struct WiderElement<E2M1> : WiderElement<E2M3> {};

#if __CUDA_ARCH__ >= 890
inline constexpr bool kConvertsTo8Bits = true;
#else
inline constexpr bool kConvertsTo8Bits = false;
#endif

template <class Element>
concept HasWider = kConvertsTo8Bits && requires {
  typename WiderElement<Element>::Type;
};
template <class Element>
concept IsLowEnd =
    HasWider<Element> && WiderElement<Element>::Type::kMantissaBits == Element::kMantissaBits;

// What an element is multiplied by to be read as the wider type, whose smallest normal number is
// then the element's.
template <class Element>
inline constexpr float kToLowEnd = power_of_two(Element::kBias -
                                                WiderElement<Element>::Type::kBias);

__device__ __forceinline__ constexpr uint32_t in_each_byte(uint32_t byte) {
  return byte * 0x01010101;
}

}  // namespace narrowcast::inline NC_VARIANT
