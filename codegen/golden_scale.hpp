// The scales of golden bytes: each rule as docs/numerics.md words it, one amax at a time.
#pragma once

#include <cstdint>
#include <span>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

struct GoldenScale {
  float multiplier;  // of encoding
  uint32_t stored;   // a byte, or the bits of an fp32 scale
};

// A rule for a type of scale. Where there is none here, the rule is not defined.
struct GoldenRule {
  ScaleRule rule;
  ScaleType scale;
  // tensor_amax is read only by rules of two levels.
  GoldenScale (*scale_of)(const ElementType& element, float amax, float tensor_amax);
};
std::span<const GoldenRule> golden_rules();

GoldenScale golden_scale(const Plan& plan, float amax, float tensor_amax);

// The multiplier of decoding.
float golden_decoder(const Plan& plan, uint32_t stored, float tensor_amax);

}  // namespace narrowcast::codegen
