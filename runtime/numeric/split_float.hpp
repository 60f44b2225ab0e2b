// Masters in fewer bits than a float has: a bfloat16 with a residual of eight bits, or a bfloat16
// alone, which is rounded up or down by chance.
#pragma once

#include "runtime/numeric/narrow.hpp"
#include "runtime/numeric/rounding.hpp"

namespace narrowcast::inline NC_VARIANT {

// The upper 24 bits of a float: the nearest bfloat16, and in units of the last of the 24 what is
// left. Floats without a sign are in the order of their bits, so a difference of bits is one.
struct SplitFloat {
  Bf16 value;
  int8_t residual;
};

// To 24 bits, ties to even; of these to the nearest bfloat16, ties away from zero, so that the
// residual is from -128 to 127. It is 0 where the value is not finite.
NC_EVERYWHERE constexpr SplitFloat split(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t upper = (bits + 0x7f + (bits >> 8 & 1)) >> 8;
  const uint32_t value = is_nan(x) ? narrow<Bf16>(x).bits : (upper + 0x80) >> 8;
  const bool is_finite = (value & 0x7fff) < kInfinityBits >> 16;
  return {{static_cast<uint16_t>(value)},
          static_cast<int8_t>(is_finite ? static_cast<int32_t>(upper - (value << 8)) : 0)};
}

// Exact. A residual that is another value's can neither change the sign nor make what is finite
// infinite.
NC_EVERYWHERE constexpr float join(SplitFloat x) {
  const int32_t value = (x.value.bits & 0x7fff) << 16;
  const bool is_finite = value < static_cast<int32_t>(kInfinityBits);
  const int32_t sum = value + (is_finite ? x.residual * 256 : 0);
  const uint32_t sign = static_cast<uint32_t>(x.value.bits & 0x8000) << 16;
  return float_of(sign | static_cast<uint32_t>(sum < 0 ? 0 : sum));
}

// The upper of two neighbours in magnitude is taken if this many 2^-16ths are below the fraction
// between them.
NC_EVERYWHERE constexpr Bf16 narrow_stochastically(float x, uint32_t random_word) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits >> 16) + (random_word >> 16 < (bits & 0xffff) ? 1 : 0);
  return is_nan(x) ? narrow<Bf16>(x) : Bf16{static_cast<uint16_t>(rounded)};
}

// What words of the masters of a step are a function of: those of another step than its codes' are.
NC_EVERYWHERE constexpr Stochastic master_rounding(uint64_t seed, int64_t t, uint64_t first) {
  return {seed, static_cast<uint64_t>(t) | uint64_t{1} << 63, first};
}

}  // namespace narrowcast::inline NC_VARIANT
