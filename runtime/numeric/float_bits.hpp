// Single floats as bits, and the handful of IEEE operations that the library's arithmetic is made
// of.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

inline constexpr float kFloatMax = std::numeric_limits<float>::max();
inline constexpr uint32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kMagnitudeMask = 0x7fffffff;

NC_EVERYWHERE constexpr uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
NC_EVERYWHERE constexpr float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
NC_EVERYWHERE constexpr float power_of_two(int exponent) {
  return float_of(static_cast<uint32_t>(exponent + 127) << 23);
}

NC_EVERYWHERE constexpr uint32_t magnitude_bits(float x) { return bits_of(x) & kMagnitudeMask; }
NC_EVERYWHERE constexpr float magnitude(float x) { return __builtin_fabsf(x); }
NC_EVERYWHERE constexpr bool is_nan(float x) { return magnitude_bits(x) > kInfinityBits; }

// The magnitude for an amax: NaN is dropped, so that one of them does not decide a block's scale.
// `most`: the largest that counts; of activations NaN does.
NC_EVERYWHERE constexpr uint32_t amax_bits(float x, uint32_t most = kInfinityBits) {
  const uint32_t magnitude = magnitude_bits(x);
  return magnitude > most ? 0 : magnitude;
}

// Of an amax, which has no sign.
NC_EVERYWHERE constexpr bool is_finite(float amax) { return bits_of(amax) < kInfinityBits; }
NC_EVERYWHERE constexpr float nan_unless_finite(float amax) {
  return is_finite(amax) ? amax : float_of(kMagnitudeMask);
}

NC_EVERYWHERE constexpr uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
NC_EVERYWHERE constexpr uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Both return the bound if x is NaN, as the GPU's own instructions do; the bound is no zero and no
// NaN.
NC_EVERYWHERE constexpr float at_most(float x, float bound) {
#if defined(__CUDA_ARCH__)
  return fminf(x, bound);
#else
  return x < bound ? x : bound;
#endif
}
NC_EVERYWHERE constexpr float at_least(float x, float bound) {
#if defined(__CUDA_ARCH__)
  return fmaxf(x, bound);
#else
  return x > bound ? x : bound;
#endif
}

// One correctly rounded operation each: host and device give equal bits.
NC_EVERYWHERE float fused_multiply_add(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
NC_EVERYWHERE float square_root(float x) { return __builtin_sqrtf(x); }

// Of any operands; runtime/numeric/ordinary.hpp has the same for ordinary ones.
struct Ieee {
  NC_EVERYWHERE static float root(float x) { return square_root(x); }
  NC_EVERYWHERE static float quotient(float a, float b) { return a / b; }
};

}  // namespace narrowcast::inline NC_VARIANT
