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
// residual is from -128 to 127. Of anything but NaN: both in one sum, whose upper half is the
// value, and whose next byte is the residual plus 128.
NC_EVERYWHERE constexpr uint32_t split_sum(float x) {
  return bits_of(x) + 0x807f + (bits_of(x) >> 8 & 1);
}
// The bfloat16 that a NaN becomes, as a number that split_sum() takes.
NC_EVERYWHERE constexpr float splittable(float x) { return is_nan(x) ? widen(narrow<Bf16>(x)) : x; }
NC_EVERYWHERE constexpr SplitFloat split(float x) {
  const uint32_t sum = split_sum(splittable(x));
  return {{static_cast<uint16_t>(sum >> 16)}, static_cast<int8_t>((sum >> 8 & 0xff) ^ 0x80)};
}

// Exact. `value`: a bfloat16's bits in the upper half; `residual`: times 256. The residual of
// another value does not change the sign: of 0 no own one is below 0.
NC_EVERYWHERE constexpr float join(uint32_t value, uint32_t residual) {
  const uint32_t sum = value + residual;
  return float_of(((sum ^ value) & 0x80000000) != 0 ? value : sum);
}
NC_EVERYWHERE constexpr float join(SplitFloat x) {
  return join(uint32_t{x.value.bits} << 16, static_cast<uint32_t>(x.residual * 256));
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
