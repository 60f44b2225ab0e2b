// From a block's amax to its scale: one rule for each value that a spec's `quantize.scale` can
// take. `multiplier` encodes, `stored` decodes; docs/numerics.md, "Amax and scales", has the
// formulas and the edge cases.
#pragma once

#include "runtime/numeric/scale_type.hpp"

namespace narrowcast::inline NC_VARIANT {

// The scale that a rule's multiplier belongs to.
template <class ScaleType>
NC_EVERYWHERE constexpr Scale<typename ScaleType::Stored> scale_of(float multiplier) {
  return ScaleType::of(multiplier);
}

// A rule's scale, or NaN: of an activation that is not finite, which no product is to hide.
template <class Rule>
NC_EVERYWHERE constexpr auto scale_or_nan(const Rule& rule, float amax, bool is_nan) {
  auto scale = rule(amax);
  if (is_nan) scale.stored = nan_scale<decltype(scale.stored)>();
  return scale;
}

// Where a scale spans the tensor.
template <class Rule>
NC_EVERYWHERE constexpr auto unless_nan(const Rule& rule, float tensor_amax) {
  return scale_or_nan(rule, tensor_amax, is_nan(tensor_amax));
}

// The multiplier that brings amax to max. An amax of 0 or infinity gives no ratio, and keeps the
// values as they are.
NC_EVERYWHERE constexpr float exact_multiplier(float amax, float max) {
  return amax == 0 || bits_of(amax) == kInfinityBits ? 1.0f : at_most(max / amax, kFloatMax);
}

template <class ScaleType, class Element>
struct Exact;

template <class Element>
struct Exact<F32, Element> {
  NC_EVERYWHERE constexpr Scale<float> operator()(float amax) const {
    return F32::of(exact_multiplier(amax, Element::kMax));
  }
};

// The least scale whose reciprocal is no more than a step beyond the largest float, 2^-128. Under a
// smaller one the multiplier could not bring values into the element's range.
inline constexpr float kLeastQuotient = float_of(0x00200000);

// The scale is the quotient itself, as published files have it, and the multiplier follows from it.
// An amax of 0 or infinity keeps the values as they are, as with the exact rule.
template <class ScaleType, class Element>
struct Quotient;

template <class Element>
struct Quotient<F32, Element> {
  NC_EVERYWHERE constexpr Scale<float> operator()(float amax) const {
    const bool has_quotient = amax != 0 && bits_of(amax) != kInfinityBits;
    const float stored = has_quotient ? at_least(amax / Element::kMax, kLeastQuotient) : 1.0f;
    return {at_most(1.0f / stored, kFloatMax), stored};
  }
};

template <class ScaleType, class Element>
struct Rceil;

template <class Element>
struct Rceil<F32, Element> {
  NC_EVERYWHERE constexpr Scale<float> operator()(float amax) const {
    const float exact = exact_multiplier(amax, Element::kMax);
    return F32::of(float_of(bits_of(exact) & kInfinityBits));
  }
};

// A product with the reciprocal gives the e8m0 code of the quotient for every fp32 amax, for these
// largest values; not for 127.
NC_EVERYWHERE constexpr bool reciprocal_serves(float max) {
  return max == 448 || max == 57344 || max == 6 || max == 7.5f || max == 28;
}

template <class Element>
struct Rceil<E8M0, Element> {
  NC_EVERYWHERE constexpr Scale<uint8_t> operator()(float amax) const {
    float ratio;
    if constexpr (reciprocal_serves(Element::kMax)) {
      ratio = amax * (1.0f / Element::kMax);
    } else {
      ratio = amax / Element::kMax;
    }
    // Any bit below the exponent asks for the next power of two. Code 0 is 2^-127, half of a
    // subnormal's exponent field.
    const uint32_t bits = bits_of(ratio);
    const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffff;
    const uint32_t above = mantissa > (exponent == 0 ? 0x400000u : 0u) ? 1 : 0;
    const uint32_t code = exponent + above;
    return E8M0::of_code(code < E8M0::kMaxCode ? code : E8M0::kMaxCode);
  }
};

// Unsigned, because ptxas 13.0 makes of a signed clamp to 0 and 254, and of the comparison with 254
// behind it, one instruction (VIMNMX.RELU) with a wrong predicate.
NC_EVERYWHERE constexpr Scale<uint8_t> e8m0_from_exponent(uint32_t exponent_field,
                                                          uint32_t max_exponent) {
  const uint32_t code = larger(exponent_field, max_exponent) - max_exponent;
  return E8M0::of_code(smaller(code, E8M0::kMaxCode));
}

template <class ScaleType, class Element>
struct Floor;

template <class Element>
struct Floor<E8M0, Element> {
  NC_EVERYWHERE constexpr Scale<uint8_t> operator()(float amax) const {
    return e8m0_from_exponent(bits_of(amax) >> 23, Element::kMaxExponent);
  }
};

template <class ScaleType, class Element>
struct Even;

// The significand is first rounded to the element's mantissa bits, half up.
template <class Element>
struct Even<E8M0, Element> {
  NC_EVERYWHERE constexpr Scale<uint8_t> operator()(float amax) const {
    constexpr uint32_t kHalf = 1u << (22 - Element::kMantissaBits);
    return e8m0_from_exponent((bits_of(amax) + kHalf) >> 23, Element::kMaxExponent);
  }
};

// Two levels: a tensor scale from the amax of the whole tensor, and an e4m3 scale for each block
// under it.
template <class ScaleType, class Element>
struct NearestEven;

template <class Element>
struct NearestEven<E4M3Scale, Element> {
  static constexpr float kRange = E4M3::kMax * Element::kMax;  // 448 * 6
  float encode_scale, decode_scale, block_scale;

  NC_EVERYWHERE constexpr explicit NearestEven(float tensor_amax) {
    const float ratio = at_most(kRange / tensor_amax, kFloatMax);
    encode_scale = tensor_amax == 0 || ratio == 0 ? 1.0f : ratio;
    decode_scale = 1.0f / encode_scale;
    block_scale = encode_scale * (1.0f / Element::kMax);
  }
  NC_EVERYWHERE constexpr Scale<uint8_t> operator()(float amax) const {
    const uint32_t code = E4M3Scale::encode(at_most(amax * block_scale, kFloatMax));
    const float decoded = E4M3Scale::decode(code) * decode_scale;
    return {at_most(1.0f / decoded, kFloatMax), static_cast<uint8_t>(code)};
  }
};

// The multipliers of decoding, level by level.
template <class ScaleType>
struct OneLevel {
  NC_EVERYWHERE constexpr float operator()(typename ScaleType::Stored stored) const {
    return ScaleType::decode(stored);
  }
};

template <class Element>
struct TwoLevels {
  float tensor_amax;
  NC_EVERYWHERE constexpr float operator()(uint8_t stored) const {
    return (E4M3Scale::decode(stored) * tensor_amax) * (1.0f / (E4M3::kMax * Element::kMax));
  }
};

}  // namespace narrowcast::inline NC_VARIANT
