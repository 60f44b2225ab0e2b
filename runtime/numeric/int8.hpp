// The int8 element: n / kUnitsPerOne for n in -127..127. The range is symmetric; -128 is decoded,
// but never written.
#pragma once

#include "runtime/numeric/float_bits.hpp"
#include "runtime/numeric/rounding.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kUnitsPerOne>
struct Int8 {
  using Code = uint8_t;
  static constexpr int kBits = 8;
  static constexpr int kMantissaBits = 6;
  static constexpr float kMax = 127.0f / kUnitsPerOne;
  static constexpr uint32_t kMaxExponent = (bits_of(kMax) >> 23) - 127;

  NC_EVERYWHERE static constexpr float decode(uint32_t code) {
    return static_cast<float>(static_cast<int8_t>(code)) * (1.0f / kUnitsPerOne);
  }

  // 1.5 * 2^23 has units of 1, so the addition rounds to an integer, ties to even, and leaves it in
  // the low bits.
  NC_EVERYWHERE static constexpr uint32_t encode(float x) {
    const float clamped = at_least(at_most(x * kUnitsPerOne, 127.0f), -127.0f);
    return bits_of(clamped + 12582912.0f) & 0xff;
  }

  NC_EVERYWHERE static constexpr uint32_t encode(float x, uint32_t random_word) {
    const float clamped = at_least(at_most(x * kUnitsPerOne, 127.0f), -127.0f);
    const uint32_t rounded = round_stochastically(float_of(magnitude_bits(clamped)), random_word);
    return (clamped < 0 ? 0 - rounded : rounded) & 0xff;
  }
};

using Integer8 = Int8<1>;     // with an fp32 scale: the integer itself
using MxInteger8 = Int8<64>;  // with an e8m0 scale: the OCP MXINT8 element, n / 64

}  // namespace narrowcast::inline NC_VARIANT
