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

// An exponent: 2^(code - 127). Code 0 is the fp32 subnormal 2^-127, 255 is NaN and never written.
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
// has one by itself.
struct E4M3Scale {
  using Stored = uint8_t;
  static constexpr bool kPowerOfTwo = false;
  NC_EVERYWHERE static constexpr float decode(uint32_t code) { return E4M3::decode(code); }
};

}  // namespace narrowcast::inline NC_VARIANT
