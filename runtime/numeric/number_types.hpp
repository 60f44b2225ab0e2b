// The number types, a row each: what the generator reads, the runtime computes with and the tests
// go through. A type is its row here and its arithmetic: docs/adding-a-number-type.md.
#pragma once

#include <string_view>
#include <type_traits>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"

// Of elements: the word of specs, the C++ type, that of the same word beside a scale that is a
// power of two, and the header of both.
#define NC_ELEMENT_TYPES(ROW)                              \
  ROW(e4m3, E4M3, E4M3, "runtime/numeric/small_float.hpp") \
  ROW(e5m2, E5M2, E5M2, "runtime/numeric/small_float.hpp") \
  ROW(e2m1, E2M1, E2M1, "runtime/numeric/small_float.hpp") \
  ROW(e2m3, E2M3, E2M3, "runtime/numeric/small_float.hpp") \
  ROW(e3m2, E3M2, E3M2, "runtime/numeric/small_float.hpp") \
  ROW(int8, Integer8, MxInteger8, "runtime/numeric/int8.hpp")

// Of scales: the word, the C++ type, and what torch calls the type of a stored one.
#define NC_SCALE_TYPES(ROW)     \
  ROW(e8m0, E8M0, "uint8")      \
  ROW(e4m3, E4M3Scale, "uint8") \
  ROW(f32, F32, "float32")

// Of rules from an amax to a scale: the word, and the template, which is specialized for the scale
// types that have the rule.
#define NC_SCALE_RULES(ROW)      \
  ROW(exact, Exact)              \
  ROW(quotient, Quotient)        \
  ROW(nearest_even, NearestEven) \
  ROW(floor, Floor)              \
  ROW(even, Even)                \
  ROW(rceil, Rceil)

namespace narrowcast::inline NC_VARIANT {

// The rows as values, for those who choose a type at run time.

struct ElementType {
  std::string_view name;  // in C++
  uint32_t (*encode)(float x);
  float (*decode)(uint32_t code);
  float max;
  int max_exponent, mantissa_bits;
};

struct ElementRow {
  std::string_view word, header;
  int bits;
  ElementType plain, beside_power_of_two;
};

struct ScaleRow {
  std::string_view word, name;
  std::string_view dtype;  // in torch
  int bytes;               // of a stored one
  bool power_of_two;
  float (*decode)(uint32_t stored);  // from its bits to the multiplier
};

template <class Type>
constexpr ElementType element_type(std::string_view name) {
  return {name,
          [](float x) -> uint32_t { return Type::encode(x); },
          [](uint32_t code) -> float { return Type::decode(code); },
          Type::kMax,
          static_cast<int>(Type::kMaxExponent),
          Type::kMantissaBits};
}

template <class Plain, class BesidePowerOfTwo>
constexpr ElementRow element_row(std::string_view word, std::string_view header,
                                 std::string_view plain, std::string_view beside_power_of_two) {
  static_assert(Plain::kBits == 4 || Plain::kBits == 6 || Plain::kBits == 8, "as packing knows");
  static_assert(Plain::kBits == BesidePowerOfTwo::kBits);
  return {word, header, Plain::kBits, element_type<Plain>(plain),
          element_type<BesidePowerOfTwo>(beside_power_of_two)};
}

template <class Type>
constexpr ScaleRow scale_row(std::string_view word, std::string_view name, std::string_view dtype) {
  using Stored = typename Type::Stored;
  constexpr auto kDecode = [](uint32_t stored) -> float {
    if constexpr (std::is_same_v<Stored, float>) {
      return Type::decode(float_of(stored));
    } else {
      return Type::decode(stored);
    }
  };
  return {word, name, dtype, sizeof(Stored), Type::kPowerOfTwo, kDecode};
}

#define NC_ROW(word, Plain, BesidePowerOfTwo, header) \
  element_row<Plain, BesidePowerOfTwo>(#word, header, #Plain, #BesidePowerOfTwo),
inline constexpr ElementRow kElementRows[] = {NC_ELEMENT_TYPES(NC_ROW)};
#undef NC_ROW

#define NC_ROW(word, Type, dtype) scale_row<Type>(#word, #Type, dtype),
inline constexpr ScaleRow kScaleRows[] = {NC_SCALE_TYPES(NC_ROW)};
#undef NC_ROW

}  // namespace narrowcast::inline NC_VARIANT
