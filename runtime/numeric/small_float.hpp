// Floating-point elements of 4 to 8 bits: sign, exponent, mantissa, from the top bit down. One
// encoding rule for all: round to the nearest value, ties to the even code, saturate at the
// largest; a NaN becomes the type's one positive NaN code, or +max where it has none. Formulas:
// docs/numerics.md, "Number types".
#pragma once

#include "runtime/numeric/float_bits.hpp"
#include "runtime/numeric/rounding.hpp"

namespace narrowcast::inline NC_VARIANT {

// Which codes at the top of the range are not finite.
enum class NonFinite {
  kNone,
  kNanOnly,  // all ones is NaN: e4m3 of the OCP specification, "e4m3fn" elsewhere
  kIeee      // the top exponent holds infinity and NaN
};

template <int kExponentBits, int kMantissa, NonFinite kNonFinite>
struct SmallFloat {
  using Code = uint8_t;
  static constexpr int kBits = 1 + kExponentBits + kMantissa;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSignBit = 1u << (kBits - 1);
  static constexpr uint32_t kMagnitude = kSignBit - 1;
  static constexpr uint32_t kMaxCode = kNonFinite == NonFinite::kNone ? kMagnitude
                                       : kNonFinite == NonFinite::kNanOnly
                                           ? kMagnitude - 1
                                           : kMagnitude - (1u << kMantissa);
  static constexpr uint32_t kNanCode = kMagnitude;

  static constexpr float kSmallestNormal = power_of_two(1 - kBias);

  // Magnitude bits are those of a float with another bias. A subnormal one is read in the binade of
  // the smallest normal number, which then is subtracted: multiplying the subnormal float by
  // 2^(127 - bias) would do, too, but subnormal operands cost a CPU a hundred cycles each.
  NC_EVERYWHERE static constexpr float decode_magnitude(uint32_t magnitude) {
    const bool subnormal = magnitude < 1u << kMantissa;
    const uint32_t bias = static_cast<uint32_t>(127 - kBias) + (subnormal ? 1 : 0);
    return float_of((magnitude << (23 - kMantissa)) + (bias << 23)) -
           (subnormal ? kSmallestNormal : 0.0f);
  }

  static constexpr float kMax = decode_magnitude(kMaxCode);
  static constexpr uint32_t kMaxExponent = (bits_of(kMax) >> 23) - 127;

  NC_EVERYWHERE static constexpr float decode(uint32_t code) {
    const uint32_t magnitude = code & kMagnitude;
    const float value = magnitude <= kMaxCode ? decode_magnitude(magnitude)
                        : kNonFinite == NonFinite::kIeee && magnitude == kMaxCode + 1
                            ? float_of(kInfinityBits)
                            : std::numeric_limits<float>::quiet_NaN();
    return code & kSignBit ? -value : value;
  }

  // Adding 2^(23 - mantissa bits) times the magnitude's binade leaves the rounded mantissa in the
  // low bits of the sum; the hardware's addition does the rounding to nearest even, and a carry
  // moves into the exponent by itself. Below the smallest normal number the binade stays, which is
  // what makes subnormals.
  NC_EVERYWHERE static constexpr uint32_t encode(float x) {
    constexpr int kShift = 23 - kMantissa;
    constexpr uint32_t kExponentOffset = static_cast<uint32_t>(kBias - 128) << kMantissa;
    const uint32_t bits = bits_of(x);
    const uint32_t magnitude = smaller(bits & kMagnitudeMask, bits_of(kMax));
    const uint32_t binade = larger(magnitude, bits_of(kSmallestNormal)) & kInfinityBits;
    const uint32_t sum =
        bits_of(float_of(magnitude) + float_of(binade + (static_cast<uint32_t>(kShift) << 23)));
    const uint32_t code = (sum + (binade >> kShift) + kExponentOffset) & kMagnitude;
    const uint32_t sign = (bits >> (32 - kBits)) & kSignBit;
    return (bits & kMagnitudeMask) > kInfinityBits ? kNanCode : sign | code;
  }

  // In units of the last place, a magnitude is a fixed-point number, whose integer part counts the
  // codes of its binade: one more of them carries into the exponent by itself.
  NC_EVERYWHERE static constexpr uint32_t encode(float x, uint32_t random_word) {
    const uint32_t bits = bits_of(x);
    const uint32_t magnitude = smaller(bits & kMagnitudeMask, bits_of(kMax));
    const uint32_t binade = larger(magnitude, bits_of(kSmallestNormal)) & kInfinityBits;
    const float units = float_of(magnitude) * float_of(((254u + kMantissa) << 23) - binade);
    const uint32_t first = ((binade >> 23) + static_cast<uint32_t>(kBias - 128)) << kMantissa;
    const uint32_t code = first + round_stochastically(units, random_word);
    const uint32_t sign = (bits >> (32 - kBits)) & kSignBit;
    return (bits & kMagnitudeMask) > kInfinityBits ? kNanCode : sign | code;
  }
};

using E4M3 = SmallFloat<4, 3, NonFinite::kNanOnly>;
using E5M2 = SmallFloat<5, 2, NonFinite::kIeee>;
using E2M1 = SmallFloat<2, 1, NonFinite::kNone>;
using E2M3 = SmallFloat<2, 3, NonFinite::kNone>;
using E3M2 = SmallFloat<3, 2, NonFinite::kNone>;

}  // namespace narrowcast::inline NC_VARIANT
