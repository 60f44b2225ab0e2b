// bf16 and fp16 as bits: widening is exact, narrowing rounds to nearest, ties to even.
#pragma once

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

NC_EVERYWHERE constexpr float widen(float x) { return x; }
NC_EVERYWHERE constexpr float widen(Bf16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}

// Shifted into place, a half is a float too small by 2^112, subnormals included; infinity and NaN
// need their exponent filled.
NC_EVERYWHERE constexpr float widen(F16 x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t finite = bits_of(float_of(magnitude) * power_of_two(112));
  return float_of(sign | (magnitude >= 0x0f800000 ? magnitude | kInfinityBits : finite));
}

template <class Type>
NC_EVERYWHERE constexpr Type narrow(float x);

template <>
NC_EVERYWHERE constexpr float narrow<float>(float x) {
  return x;
}

template <>
NC_EVERYWHERE constexpr Bf16 narrow<Bf16>(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(is_nan(x) ? bits >> 16 | 0x40 : rounded)};
}

// As the small floats do it: an addition in units of the last place rounds, and below the smallest
// normal the unit stays.
template <>
NC_EVERYWHERE constexpr F16 narrow<F16>(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  const float magnitude = float_of(magnitude_bits(x));
  if (is_nan(x)) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  const uint32_t binade = bits_of(at_least(magnitude, power_of_two(-14))) & kInfinityBits;
  const uint32_t sum = bits_of(magnitude + float_of(binade + (13u << 23)));
  const uint32_t code = (sum + (binade >> 13) + (static_cast<uint32_t>(15 - 128) << 10)) & 0x7fff;
  return {static_cast<uint16_t>(sign | code)};
}

NC_EVERYWHERE constexpr float round_to_bf16(float x) { return widen(narrow<Bf16>(x)); }

}  // namespace narrowcast::inline NC_VARIANT
