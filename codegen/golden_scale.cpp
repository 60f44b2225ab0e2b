#include "codegen/golden_scale.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace narrowcast::codegen {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// ---- scales of type f32 ----

GoldenScale f32_scale(float multiplier) {
  return {multiplier, std::bit_cast<uint32_t>(1.0f / multiplier)};
}

float exact_multiplier(const ElementType& element, float amax) {
  if (amax == 0 || std::isinf(amax)) return 1.0f;
  return std::min(element.max / amax, kLargest);
}

GoldenScale exact_f32(const ElementType& element, float amax, float) {
  return f32_scale(exact_multiplier(element, amax));
}

// The amax in units of the largest element, at least 2^-128.
GoldenScale quotient_f32(const ElementType& element, float amax, float) {
  if (amax == 0 || std::isinf(amax)) return f32_scale(1.0f);
  const float stored = std::max(amax / element.max, 0x1p-128f);
  return {std::min(1.0f / stored, kLargest), std::bit_cast<uint32_t>(stored)};
}

// The power of two below the exact multiplier.
GoldenScale rceil_f32(const ElementType& element, float amax, float) {
  return f32_scale(std::ldexp(1.0f, std::ilogb(exact_multiplier(element, amax))));
}

// ---- scales of type e8m0: 2^(code - 127) for codes 0 to 254 ----

float e8m0(int code) { return std::ldexp(1.0f, code - 127); }
GoldenScale e8m0_scale(int code) {
  return {std::ldexp(1.0f, 127 - code), static_cast<uint32_t>(code)};
}

// The least power of two that brings the amax into the element's range, by search.
GoldenScale rceil_e8m0(const ElementType& element, float amax, float) {
  const float ratio = amax / element.max;
  int code = 0;
  while (code < 254 && e8m0(code) < ratio) ++code;
  return e8m0_scale(code);
}

GoldenScale of_exponent(const ElementType& element, uint32_t amax_bits) {
  return e8m0_scale(std::clamp(static_cast<int>(amax_bits >> 23) - element.max_exponent, 0, 254));
}

GoldenScale floor_e8m0(const ElementType& element, float amax, float) {
  return of_exponent(element, std::bit_cast<uint32_t>(amax));
}

GoldenScale even_e8m0(const ElementType& element, float amax, float) {
  return of_exponent(element, std::bit_cast<uint32_t>(amax) + (1u << (22 - element.mantissa_bits)));
}

// ---- scales of type e4m3, under a tensor scale ----

struct TensorMultipliers {
  float encode, decode;
};
TensorMultipliers tensor_scale(const ElementType& element, float tensor_amax) {
  const float quotient = E4M3::kMax * element.max / tensor_amax;
  const float encode = tensor_amax == 0 || quotient == 0 ? 1.0f : std::min(quotient, kLargest);
  return {encode, 1.0f / encode};
}

GoldenScale nearest_even_e4m3(const ElementType& element, float amax, float tensor_amax) {
  const TensorMultipliers tensor = tensor_scale(element, tensor_amax);
  const float inverse_max = 1.0f / element.max;
  const float block_scale = tensor.encode * inverse_max;
  const uint32_t stored = E4M3::encode(std::min(amax * block_scale, kLargest));
  const float decoded = E4M3::decode(stored) * tensor.decode;
  return {std::min(1.0f / decoded, kLargest), stored};
}

constexpr GoldenRule kGoldenRules[] = {
    {ScaleRule::kExact, ScaleType::kF32, exact_f32},
    {ScaleRule::kQuotient, ScaleType::kF32, quotient_f32},
    {ScaleRule::kRceil, ScaleType::kF32, rceil_f32},
    {ScaleRule::kRceil, ScaleType::kE8M0, rceil_e8m0},
    {ScaleRule::kFloor, ScaleType::kE8M0, floor_e8m0},
    {ScaleRule::kEven, ScaleType::kE8M0, even_e8m0},
    {ScaleRule::kNearestEven, ScaleType::kE4M3Scale, nearest_even_e4m3},
};

}  // namespace

std::span<const GoldenRule> golden_rules() { return kGoldenRules; }

GoldenScale golden_scale(const Plan& plan, float amax, float tensor_amax) {
  for (const GoldenRule& golden : kGoldenRules) {
    if (golden.rule == plan.rule && golden.scale == plan.scale)
      return golden.scale_of(type_of(plan.element, plan.scale), amax, tensor_amax);
  }
  throw std::logic_error("a plan with a rule that is not defined for its scales");
}

float golden_decoder(const Plan& plan, uint32_t stored, float tensor_amax) {
  const float scale = row_of(plan.scale).decode(stored);
  if (!plan.two_levels) return scale;
  const float inverse_range = 1.0f / (E4M3::kMax * type_of(plan.element, plan.scale).max);
  return (scale * tensor_amax) * inverse_range;
}

}  // namespace narrowcast::codegen
