// Square roots and quotients of ordinary operands, with IEEE's bits. The GPU's compiler has a
// branch around each, for operands that are rare, and nothing can be moved across it: where
// registers leave room for a few warps alone, results wait for each other. Here are the steps
// between: an estimate by the GPU, and Newton's correction by the exact remainder. tests/exhaustive
// compares them.
#pragma once

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

// From kSmallestRadicand on, below which the remainder is no float. Of 0, infinity and NaN a GPU
// gives NaN.
inline constexpr float kSmallestRadicand = power_of_two(-101);
NC_EVERYWHERE float ordinary_root(float x) {
#if defined(__CUDA_ARCH__)
  float estimate;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  const float root = x * estimate;
  return fused_multiply_add(fused_multiply_add(-root, root, x), estimate * 0.5f, root);
#else
  return square_root(x);
#endif
}

// |a| from kSmallestDividend on, or the remainder may be no float; b up to kLargestDivisor, or the
// quotient may be subnormal, and is rounded twice. Where it is infinite or NaN, or b is subnormal,
// a GPU gives NaN.
inline constexpr float kSmallestDividend = power_of_two(-60), kLargestDivisor = power_of_two(60);
NC_EVERYWHERE float ordinary_quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(b));
  const float error = fused_multiply_add(-b, estimate, 1.0f);
  const float reciprocal = fused_multiply_add(estimate, error, estimate);
  const float quotient = a * reciprocal;
  return fused_multiply_add(reciprocal, fused_multiply_add(-b, quotient, a), quotient);
#else
  return a / b;
#endif
}

// Computes as if all operands were ordinary, and says whether they were.
struct Ordinary {
  bool were = true;

  NC_EVERYWHERE float root(float x) {
    were = were && x >= kSmallestRadicand;
    return ordinary_root(x);
  }
  NC_EVERYWHERE float quotient(float a, float b) {
    were = were && magnitude(a) >= kSmallestDividend && b <= kLargestDivisor;
    return ordinary_quotient(a, b);
  }
  // Results that came of these, NaN where they were not.
  NC_EVERYWHERE void note(float x, float y) { were = were && (x <= y || x >= y); }
};

}  // namespace narrowcast::inline NC_VARIANT
