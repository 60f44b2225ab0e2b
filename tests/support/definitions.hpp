// The definitions of docs/numerics.md, sections "Number types", "Amax and scales" and "Stochastic
// rounding", as steps: in double precision, where every product below is exact, and never through
// the library's own text.
#pragma once

#include <algorithm>

#include "tests/support/steps.hpp"

namespace narrowcast::test {

// Each type of runtime/numeric/number_types.hpp has a definition here, named k and its C++ name.

// A type of sign, exponent and mantissa; `last` is the largest finite positive code.
struct Type {
  int exponent_bits, mantissa_bits, bias;
  uint32_t last, nan_code;
  bool infinity = false;  // as the code after `last`

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  // The value of a positive code, as sign, exponent and mantissa spell it.
  double value(uint32_t code) const {
    const int field = static_cast<int>(code >> mantissa_bits);
    const double mantissa = std::ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
    return std::ldexp(mantissa + (field > 0), std::max(field, 1) - bias);
  }
  double max() const { return value(last); }
};
inline constexpr Type kE4M3{4, 3, 7, 0x7e, 0x7f};
inline constexpr Type kE5M2{5, 2, 15, 0x7b, 0x7f, true};
inline constexpr Type kE2M1{2, 1, 1, 0x7, 0x7};
inline constexpr Type kE2M3{2, 3, 1, 0x1f, 0x1f};
inline constexpr Type kE3M2{3, 2, 3, 0x1f, 0x1f};
inline constexpr Type kBf16{8, 7, 127, 0x7f7f, 0x7fc0, true};
inline constexpr Type kF16{5, 10, 15, 0x7bff, 0x7e00, true};

// n units for n from -127 to 127, in two's complement.
struct Integers {
  double unit;
  int mantissa_bits = 6;

  double max() const { return 127 * unit; }
};
inline constexpr Integers kInteger8{1};
inline constexpr Integers kMxInteger8{1.0 / 64};

inline std::vector<uint64_t> count_to(uint64_t last) {
  std::vector<uint64_t> values;
  for (uint64_t value = 0; value <= last; ++value) values.push_back(value);
  return values;
}

// The nearest value of the list, ties to the even code; the last code saturates.
inline Steps encoding(const Type& type) {
  const Steps magnitudes = steps_of(count_to(type.last), [&](size_t code, double x) {
    const uint32_t c = static_cast<uint32_t>(code);
    const double middle = (type.value(c - 1) + type.value(c)) / 2;
    return c % 2 == 0 ? x >= middle : x > middle;
  });
  const uint64_t sign = uint64_t{1} << (type.bits() - 1);
  return with_signs(magnitudes, type.nan_code, [=](uint64_t code) { return code | sign; });
}

// How far it is from a value to the next where stochastic rounding, for one random word, begins to
// take the next: "Stochastic rounding".
inline double share_of(uint32_t random_word) { return (random_word >> 8) * 0x1p-24; }

inline Steps stochastic_encoding(const Type& type, uint32_t random_word) {
  const Steps magnitudes = steps_of(count_to(type.last), [&](size_t code, double x) {
    const double above = type.value(static_cast<uint32_t>(code)),
                 below = type.value(static_cast<uint32_t>(code) - 1);
    return x >= above || x > below + share_of(random_word) * (above - below);
  });
  const uint64_t sign = uint64_t{1} << (type.bits() - 1);
  return with_signs(magnitudes, type.nan_code, [=](uint64_t code) { return code | sign; });
}

// As `encoding`, but what rounds beyond the last code is the infinity after it: bf16 and fp16.
inline Steps narrowing(const Type& type) {
  Type extended = type;
  ++extended.last;  // its spelling is the power of two that an infinity stands for
  return encoding(extended);
}

inline Steps stochastic_narrowing(Type type, uint32_t random_word) {
  ++type.last;
  return stochastic_encoding(type, random_word);
}

// Of a master in 24 bits: the bfloat16 value, the residual, and the bits of what they are together.
NC_EVERYWHERE uint64_t split_value(uint32_t value, int residual, uint32_t joined) {
  return uint64_t{value} << 48 | uint64_t{static_cast<uint8_t>(residual)} << 32 | joined;
}

// In magnitudes, by remainders.
struct Split {
  NC_EVERYWHERE uint64_t operator()(float x) const {
    const uint32_t sign = bits_of(x) >> 31, magnitude = bits_of(x) & 0x7fffffff;
    if (magnitude > 0x7f800000) {
      const uint32_t quiet = sign << 15 | magnitude >> 16 | 0x40;
      return split_value(quiet, 0, quiet << 16);
    }
    uint32_t upper = magnitude / 256, rest = magnitude % 256;
    if (rest > 128 || (rest == 128 && upper % 2 == 1)) ++upper;
    uint32_t value = upper / 256;
    rest = upper % 256;
    if (rest >= 128) ++value;
    const int residual = rest >= 128 ? static_cast<int>(rest) - 256 : static_cast<int>(rest);
    return split_value(sign << 15 | value, residual, sign << 31 | upper * 256);
  }
};

inline Steps encoding(const Integers& type) {
  const Steps magnitudes = steps_of(count_to(127), [&](size_t n, double x) {
    const double middle = (static_cast<double>(n) - 0.5) * type.unit;
    return n % 2 == 0 ? x >= middle : x > middle;
  });
  return with_signs(magnitudes, 127, [](uint64_t n) { return (256 - n) & 0xff; });
}

inline Steps stochastic_encoding(const Integers& type, uint32_t random_word) {
  const Steps magnitudes = steps_of(count_to(127), [&](size_t n, double x) {
    const double above = static_cast<double>(n);
    return x >= above * type.unit || x > (above - 1 + share_of(random_word)) * type.unit;
  });
  return with_signs(magnitudes, 127, [](uint64_t n) { return (256 - n) & 0xff; });
}

// What a rule gives: the stored scale and the bits of the multiplier.
NC_EVERYWHERE uint64_t scale_value(uint32_t stored, float multiplier) {
  return uint64_t{stored} << 32 | bits_of(multiplier);
}

inline std::vector<uint64_t> e8m0_values() {
  std::vector<uint64_t> values;
  for (int code = 0; code <= 254; ++code) {
    values.push_back(scale_value(static_cast<uint32_t>(code), std::ldexp(1.0f, 127 - code)));
  }
  return values;
}

// The least power of two that is not less than fl(a / max). The quotient is rounded above 2^k where
// it passes the middle between 2^k and the next float; a tie goes back to 2^k, which is even.
// Infinity has no such power, and takes the last.
inline Steps rceil_e8m0(double max) {
  return of_amax(steps_of(e8m0_values(), [=](size_t code, double a) {
    const int below = static_cast<int>(code) - 1 - 127;
    const double half_step = std::ldexp(1.0, std::max(below - 23, -149) - 1);
    return a >= 0x1p128 || a > max * (std::ldexp(1.0, below) + half_step);
  }));
}

// The power of two of the amax, under that of the largest element.
inline Steps floor_e8m0(int max_exponent) {
  return of_amax(steps_of(e8m0_values(), [=](size_t code, double a) {
    return a >= std::ldexp(1.0, static_cast<int>(code) - 127 + max_exponent);
  }));
}

// The same after the significand was rounded to the element's mantissa bits, half up. Subnormal
// amaxes have no leading one, so their step is twice as wide.
inline Steps even_e8m0(int max_exponent, int mantissa_bits) {
  return of_amax(steps_of(e8m0_values(), [=](size_t code, double a) {
    const int exponent = static_cast<int>(code) - 127 + max_exponent;
    const int bits = exponent == -126 ? mantissa_bits + 1 : mantissa_bits + 2;
    return a >= std::ldexp(1.0 - std::ldexp(1.0, -bits), exponent);
  }));
}

// The fp32 number nearest to x. C++ leaves open what the conversion of a number beyond all floats
// gives, and compilers differ in it.
NC_EVERYWHERE float rounded(double x) {
  constexpr double kBeyond = 0x1.ffffffp127;  // the middle between the largest float and 2^128
  return x >= kBeyond ? float_of(kInfinityBits) : static_cast<float>(x);
}

// One division in double precision and one narrowing give the correctly rounded fp32 quotient: 53
// bits are more than twice 24.
NC_EVERYWHERE float quotient(double a, double b) { return rounded(a / b); }

// E and S of the exact rule, of the amax that a float alone makes.
struct ExactF32 {
  double max;

  NC_EVERYWHERE uint64_t operator()(float x) const {
    const float amax = x < 0 ? -x : x;  // of a NaN: no comparison below holds
    const bool has_ratio = amax > 0 && amax <= kFloatMax;
    const float ratio = quotient(max, has_ratio ? amax : 1.0f);
    const float multiplier = !has_ratio ? 1.0f : ratio > kFloatMax ? kFloatMax : ratio;
    return scale_value(bits_of(quotient(1, multiplier)), multiplier);
  }
};

// The same of the rule by quotients. Both roundings of the quotient are one: the first keeps more
// than twice the bits of any fp32 result.
struct QuotientF32 {
  double max;

  NC_EVERYWHERE uint64_t operator()(float x) const {
    const float amax = x < 0 ? -x : x;  // of a NaN: no comparison below holds
    const bool has_quotient = amax > 0 && amax <= kFloatMax;
    const float ratio = quotient(has_quotient ? amax : max, max);
    const float scale = ratio < 0x1p-128f ? 0x1p-128f : ratio;
    const float inverse = quotient(1, scale);
    return scale_value(bits_of(scale), inverse > kFloatMax ? kFloatMax : inverse);
  }
};

// E = 2^k with the largest k for which fl(max / a) >= 2^k: that is, for which max / a is not less
// than the middle between 2^k and the float below it.
inline Steps rceil_f32(double max) {
  std::vector<uint64_t> values{scale_value(bits_of(1.0f), 1.0f)};  // of 0
  for (int k = 127; k >= -126; --k) {
    values.push_back(scale_value(bits_of(std::ldexp(1.0f, -k)), std::ldexp(1.0f, k)));
  }
  values.push_back(values[0]);  // of infinity
  return of_amax(steps_of(values, [&](size_t i, double a) {
    if (i == 1) return a > 0;
    if (i + 1 == values.size()) return a >= 0x1p128;
    const int above = 127 - static_cast<int>(i) + 2;
    return a * std::ldexp(1.0 - 0x1p-25, above) > max;
  }));
}

// The e4m3 scales of blocks under a tensor amax. Products of two floats are exact in double
// precision, and one conversion rounds them.
inline Steps nearest_even_e4m3(float tensor_amax) {
  const auto product = [](double a, double b) { return double{rounded(a * b)}; };
  const double ratio = std::min(double{quotient(2688, tensor_amax)}, double{kFloatMax});
  const double encode = tensor_amax == 0 || ratio == 0 ? 1 : ratio;
  const double decode = quotient(1, encode);
  const double block = product(encode, quotient(1, 6));
  std::vector<uint64_t> values;
  for (uint32_t code = 0; code <= kE4M3.last; ++code) {
    const double under = product(kE4M3.value(code), decode);
    const double multiplier = std::min(double{quotient(1, under)}, double{kFloatMax});
    values.push_back(scale_value(code, static_cast<float>(multiplier)));
  }
  return of_amax(steps_of(values, [&](size_t code, double a) {
    const double x = a == 0x1p128 ? 0x1p128 : product(a, block);
    const uint32_t c = static_cast<uint32_t>(code);
    const double middle = (kE4M3.value(c - 1) + kE4M3.value(c)) / 2;
    return c % 2 == 0 ? x >= middle : x > middle;
  }));
}

}  // namespace narrowcast::test
