#include "codegen/golden_scale.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::codegen {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

template <class Type>
GoldenElement element() {
  return {[](float x) -> uint32_t { return Type::encode(x); },
          [](uint32_t code) -> float { return Type::decode(code); }, Type::kMax, Type::kMaxExponent,
          Type::kMantissaBits};
}

// e8m0 has 2^(code - 127) for codes 0 to 254.
float e8m0(int code) { return std::ldexp(1.0f, code - 127); }
GoldenScale e8m0_scale(int code) {
  return {std::ldexp(1.0f, 127 - code), static_cast<uint32_t>(code)};
}

GoldenScale f32_scale(float multiplier) {
  return {multiplier, std::bit_cast<uint32_t>(1.0f / multiplier)};
}

float exact_multiplier(const GoldenElement& element, float amax) {
  if (amax == 0 || std::isinf(amax)) return 1.0f;
  return std::min(element.max / amax, kLargest);
}

float power_of_two_below(float x) { return std::ldexp(1.0f, std::ilogb(x)); }

// The least power of two that brings the amax into the element's range, by search.
int rceil_code(const GoldenElement& element, float amax) {
  const float ratio = amax / element.max;
  int code = 0;
  while (code < 254 && e8m0(code) < ratio) ++code;
  return code;
}

int floor_code(const GoldenElement& element, uint32_t amax_bits) {
  return std::clamp(static_cast<int>(amax_bits >> 23) - element.max_exponent, 0, 254);
}

struct TensorMultipliers {
  float encode, decode;
};
TensorMultipliers tensor_scale(const GoldenElement& element, float tensor_amax) {
  const float quotient = E4M3::kMax * element.max / tensor_amax;
  const float encode = tensor_amax == 0 || quotient == 0 ? 1.0f : std::min(quotient, kLargest);
  return {encode, 1.0f / encode};
}

GoldenScale nearest_even(const GoldenElement& element, float amax, float tensor_amax) {
  const TensorMultipliers tensor = tensor_scale(element, tensor_amax);
  const float inverse_max = 1.0f / element.max;
  const float block_scale = tensor.encode * inverse_max;
  const uint32_t stored = E4M3::encode(std::min(amax * block_scale, kLargest));
  const float decoded = E4M3::decode(stored) * tensor.decode;
  return {std::min(1.0f / decoded, kLargest), stored};
}

}  // namespace

GoldenElement golden_element(const Plan& plan) {
  switch (plan.element) {
    case Element::kE4M3:
      return element<E4M3>();
    case Element::kE5M2:
      return element<E5M2>();
    case Element::kE2M1:
      return element<E2M1>();
    case Element::kE2M3:
      return element<E2M3>();
    case Element::kE3M2:
      return element<E3M2>();
    case Element::kInt8:
      break;
  }
  return plan.scale == ScaleType::kE8M0 ? element<MxInteger8>() : element<Integer8>();
}

GoldenScale golden_scale(const Plan& plan, float amax, float tensor_amax) {
  const GoldenElement element = golden_element(plan);
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  const bool f32 = plan.scale == ScaleType::kF32;
  switch (plan.rule) {
    case ScaleRule::kExact:
      return f32_scale(exact_multiplier(element, amax));
    case ScaleRule::kRceil:
      return f32 ? f32_scale(power_of_two_below(exact_multiplier(element, amax)))
                 : e8m0_scale(rceil_code(element, amax));
    case ScaleRule::kFloor:
      return e8m0_scale(floor_code(element, bits));
    case ScaleRule::kEven:
      return e8m0_scale(floor_code(element, bits + (1u << (22 - element.mantissa_bits))));
    case ScaleRule::kNearestEven:
      break;
  }
  return nearest_even(element, amax, tensor_amax);
}

float golden_decoder(const Plan& plan, uint32_t stored, float tensor_amax) {
  if (plan.scale == ScaleType::kF32) return std::bit_cast<float>(stored);
  if (plan.scale == ScaleType::kE8M0) return e8m0(static_cast<int>(stored));
  const float inverse_range = 1.0f / (E4M3::kMax * golden_element(plan).max);
  return (E4M3::decode(stored) * tensor_amax) * inverse_range;
}

}  // namespace narrowcast::codegen
