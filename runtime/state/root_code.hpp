// Eight bits of a state: whole numbers of a value's root, so that small values keep more of their
// digits than even steps would leave them. docs/numerics.md, "State formats".
#pragma once

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

// What is stored of a block, and what its values are multiplied by ahead of the root.
struct StateScale {
  float scale, multiplier;
};

// Root 1, 2 or 4. Signed: from -127 to 127, in two's complement; else from 0 to 255.
template <int kRoot, bool kSigned>
struct RootCode {
  static_assert(kRoot == 1 || kRoot == 2 || kRoot == 4);
  static constexpr float kMost = kSigned ? 127.0f : 255.0f;

  // The power of a whole number, with its sign.
  NC_EVERYWHERE static constexpr float raised(float whole) {
    if constexpr (kRoot == 1) return whole;
    const float square = whole * (whole < 0 ? -whole : whole);
    return kRoot == 2 ? square : square * (square < 0 ? -square : square);
  }
  NC_EVERYWHERE static float root_of(float x) {
    if constexpr (kRoot == 1) return x;
    return kRoot == 2 ? square_root(x) : square_root(square_root(x));
  }

  // Of a block's largest magnitude, as bits. What is not finite makes the scale NaN, and with it
  // the whole block; what is too small for a multiplier becomes 0.
  NC_EVERYWHERE static StateScale scale_of(uint32_t amax) {
    constexpr float kShare = 1 / raised(kMost), kSmallest = power_of_two(-126);
    if (amax >= kInfinityBits) return {float_of(kMagnitudeMask), 0.0f};
    const float scale = float_of(amax) * kShare;
    if (scale < kSmallest) return {0.0f, 0.0f};
    return {scale, 1 / scale};
  }

  NC_EVERYWHERE static uint8_t encode(float x, float multiplier) {
    constexpr float kOnes = power_of_two(23);  // a float from here on is a whole number
    const float root = at_most(root_of(float_of(magnitude_bits(x)) * multiplier), kMost);
    const uint32_t whole = bits_of(root + kOnes) & 0xff;
    return static_cast<uint8_t>(kSigned && x < 0 ? 0u - whole : whole);
  }

  NC_EVERYWHERE static float decode(uint8_t code, float scale) {
    const int whole = kSigned ? static_cast<int8_t>(code) : code;
    return raised(static_cast<float>(whole)) * scale;
  }
};

}  // namespace narrowcast::inline NC_VARIANT
