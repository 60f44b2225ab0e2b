// How the part of a rank travels in a reduce-scatter: codes of its elements one after the other,
// then a scale for each block. Nothing of the format's own layout of matrices counts: neither
// padding nor order of its scales.
#pragma once

#include <type_traits>

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/float_bits.hpp"
#include "runtime/numeric/rounding.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// Elements whose codes fill whole bytes, whatever their width.
inline constexpr int kUnit = 8;

// Whether a run of elements can be cut into a format's blocks and cast before anything else is
// known: blocks lie along rows, and no scale spans the tensor.
constexpr bool casts_parts(const Layout& rowwise, bool tensor_amax) {
  return rowwise.block_rows == 1 && rowwise.block_columns >= kUnit && !tensor_amax;
}

struct PartLayout {
  static constexpr int64_t kAligned = 16;
  int64_t code_end;   // bytes; codes begin at 0
  int64_t scales;     // where they begin
  int64_t scale_end;  // what follows, up to `bytes`, is zero
  int64_t bytes;      // of a part

  NC_EVERYWHERE constexpr PartLayout(int64_t elements, int64_t element_bits, int64_t block,
                                     int64_t scale_bytes)
      : code_end(ceil_div(elements, kUnit) * element_bits),
        scales(round_up(code_end, kAligned)),
        scale_end(scales + ceil_div(elements, block) * scale_bytes),
        bytes(round_up(scale_end, kAligned)) {}
};

// The bytes of the parts in a buffer, a slot each.
template <class Sequence>
struct PartBytes {
  using Stored = typename Sequence::ScaleType::Stored;
  static constexpr int kBits = Sequence::kRowwise.element_bits;  // and bytes of a unit's codes
  static constexpr int kBlock = static_cast<int>(Sequence::kRowwise.block_columns);
  static constexpr int kRun = kBlock < 16 ? kUnit : 16;  // elements of a thread of the GPU
  PartLayout part;
  uint8_t* bytes;

  NC_EVERYWHERE explicit PartBytes(const nc_parts& parts)
      : part(parts.elements, kBits, kBlock, sizeof(Stored)), bytes(parts.bytes) {}

  // Of an element that begins a unit, and of one that is in a block.
  NC_EVERYWHERE uint8_t* codes(int64_t slot, int64_t element) const {
    return bytes + slot * part.bytes + element / kUnit * kBits;
  }
  NC_EVERYWHERE Stored* scale(int64_t slot, int64_t element) const {
    return reinterpret_cast<Stored*>(bytes + slot * part.bytes + part.scales) + element / kBlock;
  }
  // What no element has of a part's bytes, so that all of them are known.
  NC_EVERYWHERE void zero_gaps(int64_t slot) const {
    uint8_t* own = bytes + slot * part.bytes;
    for (int64_t at = part.code_end; at < part.scales; ++at) own[at] = 0;
    for (int64_t at = part.scale_end; at < part.bytes; ++at) own[at] = 0;
  }
};

// The rank whose part lies in a slot: the own one has none.
NC_EVERYWHERE int64_t rank_of_slot(const nc_parts& parts, int64_t slot) {
  return slot + (slot >= parts.rank ? 1 : 0);
}

template <class Rounding>
NC_EVERYWHERE Rounding rounding_of(const nc_parts& parts) {
  if constexpr (std::is_same_v<Rounding, Stochastic>) return {parts.seed, parts.step, parts.first};
  return {};
}

// Of a power of two, so that a product with it is the quotient; of other divisors NaN.
NC_EVERYWHERE constexpr float exact_inverse(float divisor) {
  const uint32_t bits = bits_of(divisor), inverse = (254u << 23) - bits;
  const bool has_inverse = (bits & ~kInfinityBits) == 0 && bits != 0 && bits < 254u << 23;
  return float_of(has_inverse ? inverse : kMagnitudeMask);
}

// A sum divided; a NaN is the same on every machine.
NC_EVERYWHERE float quotient_of(float sum, float divisor) {
  const float quotient = sum / divisor;
  return is_nan(quotient) ? std::numeric_limits<float>::quiet_NaN() : quotient;
}

}  // namespace narrowcast::inline NC_VARIANT
