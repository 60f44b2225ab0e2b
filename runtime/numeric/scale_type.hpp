// The types of stored scales. `Stored` is what memory holds; `decode` gives the multiplier.
#pragma once

#include "runtime/numeric/small_float.hpp"

namespace narrowcast::inline NC_VARIANT {

// An exponent: 2^(code - 127). Code 0 is the fp32 subnormal 2^-127, 255 is NaN and never written.
struct E8M0 {
  using Stored = uint8_t;
  static constexpr uint32_t kMaxCode = 254;

  NC_EVERYWHERE static constexpr float decode(uint32_t code) {
    return code == 0     ? float_of(0x00400000)
           : code == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : float_of(code << 23);
  }
  // 2^(127 - code), the multiplier that undoes decode. Exact for every code that is written.
  NC_EVERYWHERE static constexpr float reciprocal(uint32_t code) {
    return code == kMaxCode ? float_of(0x00400000) : float_of((kMaxCode - code) << 23);
  }
};

struct F32 {
  using Stored = float;
  NC_EVERYWHERE static constexpr float decode(float stored) { return stored; }
};

// A stored scale of type e4m3, always positive.
struct E4M3Scale {
  using Stored = uint8_t;
  NC_EVERYWHERE static constexpr float decode(uint32_t code) { return E4M3::decode(code); }
};

}  // namespace narrowcast::inline NC_VARIANT
