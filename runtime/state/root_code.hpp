// Eight bits of a state: whole numbers of a value's root, so that small values keep more of their
// digits than even steps would leave them. docs/numerics.md, "State formats".
#pragma once

#include "runtime/numeric/ordinary.hpp"

namespace narrowcast::inline NC_VARIANT {

// What is stored of a block, and what its values are multiplied by ahead of the root.
struct StateScale {
  float scale, multiplier;
};

// Of a block's largest magnitude, as bits, and the share of it that the code 1 stands for. An amax
// that is not finite makes the scale NaN, and with it the whole block; one that is too small for a
// multiplier makes it 0.
NC_EVERYWHERE StateScale state_scale(uint32_t amax, float share) {
  constexpr float kSmallest = power_of_two(-126);
  const float scale = float_of(amax) * share;
  if (amax >= kInfinityBits) return {float_of(kMagnitudeMask), 0.0f};
  if (scale < kSmallest) return {0.0f, 0.0f};
  return {scale, ordinary_quotient(1.0f, scale)};
}

// 2^23, the float whose low byte a code is put into.
inline constexpr uint32_t kCarrier = 0x4b000000;

// Root 1, 2 or 4. Signed: from -127 to 127, in two's complement; else from 0 to 255.
template <int kRoot, bool kSigned>
struct RootCode {
  static_assert(kRoot == 1 || kRoot == 2 || kRoot == 4);
  static constexpr float kMost = kSigned ? 127.0f : 255.0f;

  // The power of a whole number, with its sign.
  NC_EVERYWHERE static constexpr float raised(float whole) {
    if constexpr (kRoot == 1) return whole;
    const float square = kSigned ? whole * magnitude(whole) : whole * whole;
    if constexpr (kRoot == 2) return square;
    return kSigned ? square * magnitude(square) : square * square;
  }
  static constexpr float kShare = 1 / raised(kMost);

  NC_EVERYWHERE static float root_of(float x) {
    if constexpr (kRoot == 1) return x;
    return kRoot == 2 ? ordinary_root(x) : ordinary_root(ordinary_root(x));
  }

  // The code is the low byte. An addition rounds, and leaves a whole number in the low bits; that
  // of NaN is what a GPU's NaN has there.
  NC_EVERYWHERE static uint32_t encode(float x, float multiplier) {
    constexpr float kWholes = kSigned ? 3 * power_of_two(22) : power_of_two(23);
    constexpr float kLeast = power_of_two(-24);  // 0 has no ordinary root; the code of this is 0
    const float share = fused_multiply_add(magnitude(x), multiplier, kLeast);
    const float root = root_of(share);
    const uint32_t sign = kSigned ? bits_of(x) & ~kMagnitudeMask : 0;
    const uint32_t whole = bits_of(float_of(bits_of(root) | sign) + kWholes);
#if defined(__CUDA_ARCH__)
    return whole;
#else
    return is_nan(root) ? 0xff : whole;
#endif
  }

  // The sign bit of a code is flipped ahead of the carrier, so that all codes are above 0 there.
  static constexpr uint32_t kFlipped = kSigned ? 0x80 : 0;
  NC_EVERYWHERE static float decode(uint32_t carried, float scale) {
    constexpr float kZero = power_of_two(23) + (kSigned ? 128 : 0);
    return raised(float_of(carried) - kZero) * scale;
  }
  NC_EVERYWHERE static float decode_byte(uint8_t code, float scale) {
    return decode(kCarrier | (code ^ kFlipped), scale);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
