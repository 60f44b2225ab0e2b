// The scales of golden bytes: each rule as docs/numerics.md words it, one amax at a time.
#pragma once

#include <cstdint>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// An element type as values instead of templates.
struct GoldenElement {
  uint32_t (*encode)(float);
  float (*decode)(uint32_t);
  float max;
  int max_exponent, mantissa_bits;
};
GoldenElement golden_element(const Plan& plan);

struct GoldenScale {
  float multiplier;  // of encoding
  uint32_t stored;   // a byte, or the bits of an fp32 scale
};

// tensor_amax is read only by rules of two levels.
GoldenScale golden_scale(const Plan& plan, float amax, float tensor_amax);

// The multiplier of decoding.
float golden_decoder(const Plan& plan, uint32_t stored, float tensor_amax);

}  // namespace narrowcast::codegen
