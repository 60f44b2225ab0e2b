// The types of stored scales. `Stored` is what memory holds; `decode` gives the multiplier of
// decoding, and `of` the scale that a rule's multiplier of encoding belongs to.
#pragma once

#include "runtime/numeric/small_float.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class StoredType>
struct Scale {
  float multiplier;
  StoredType stored;
};

// A NaN of every type: of those of a byte all bits.
template <class Stored>
NC_EVERYWHERE constexpr Stored nan_scale() {
  if constexpr (sizeof(Stored) == 1) return 0xff;
  return std::numeric_limits<Stored>::quiet_NaN();
}

// An exponent: 2^(code - 127). Code 0 is the fp32 subnormal 2^-127, 255 is NaN, of activations
// alone.
struct E8M0 {
  using Stored = uint8_t;
  static constexpr bool kPowerOfTwo = true;
  static constexpr uint32_t kMaxCode = 254;

  NC_EVERYWHERE static constexpr float decode(uint32_t code) {
    constexpr uint32_t kNan = bits_of(std::numeric_limits<float>::quiet_NaN());
    return float_of(code == 0 ? 0x00400000 : code == 255 ? kNan : code << 23);
  }
  // 2^(127 - code), the multiplier that undoes decode. Exact for every code that is written.
  NC_EVERYWHERE static constexpr float reciprocal(uint32_t code) {
    return code == kMaxCode ? float_of(0x00400000) : float_of((kMaxCode - code) << 23);
  }
  NC_EVERYWHERE static constexpr Scale<Stored> of_code(uint32_t code) {
    return {reciprocal(code), static_cast<Stored>(code)};
  }
  NC_EVERYWHERE static constexpr Scale<Stored> of(float multiplier) {
    return of_code(kMaxCode - (bits_of(multiplier) >> 23));
  }
};

struct F32 {
  using Stored = float;
  static constexpr bool kPowerOfTwo = false;
  NC_EVERYWHERE static constexpr float decode(float stored) { return stored; }
  NC_EVERYWHERE static constexpr Scale<Stored> of(float multiplier) {
    return {multiplier, 1.0f / multiplier};
  }
};

// A stored scale of type e4m3, always positive. It stands under a tensor scale, so no multiplier
// has one by itself. GPUs from sm_89 on convert e4m3 themselves, to the same bits (a NaN's payload
// aside, of which no product keeps any); in a cast of small blocks scales are a third of the work.
struct E4M3Scale {
  using Stored = uint8_t;
  static constexpr bool kPowerOfTwo = false;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  NC_EVERYWHERE static float decode(uint32_t code) {
    float value;
    asm("{ .reg .b32 pair; .reg .b16 low, high;\n"
        "  cvt.rn.f16x2.e4m3x2 pair, %1;\n"
        "  mov.b32 {low, high}, pair;\n"
        "  cvt.f32.f16 %0, low; }"
        : "=f"(value)
        : "h"(static_cast<uint16_t>(code)));
    return value;
  }
  NC_EVERYWHERE static uint32_t encode(float scale) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(scale));
    return pair;
  }
#else
  NC_EVERYWHERE static constexpr float decode(uint32_t code) { return E4M3::decode(code); }
  NC_EVERYWHERE static constexpr uint32_t encode(float scale) { return E4M3::encode(scale); }
#endif
};

}  // namespace narrowcast::inline NC_VARIANT
