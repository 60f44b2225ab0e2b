// How the part of a rank travels in a reduce-scatter: codes of its elements one after the other,
// then a scale for each block. Nothing of the format's own layout of matrices counts: neither
// padding nor order of its scales.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/float_bits.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// Elements whose codes fill whole bytes, whatever their width; a thread of the GPU has so many.
inline constexpr int64_t kUnit = 8;

// Whether a run of elements can be cut into a format's blocks and cast before anything else is
// known: blocks lie along rows, and no scale spans the tensor.
constexpr bool casts_parts(const Layout& rowwise, bool tensor_amax) {
  return rowwise.block_rows == 1 && rowwise.block_columns >= kUnit && !tensor_amax;
}

struct PartLayout {
  int64_t blocks;
  int64_t code_end;   // bytes; codes begin at 0
  int64_t scales;     // where they begin
  int64_t scale_end;  // what follows, up to `bytes`, is zero
  int64_t bytes;      // of all
  int64_t numbers;    // of its elements, as random words count them: the last block is whole

  NC_EVERYWHERE constexpr PartLayout(const Layout& layout, int64_t elements)
      : blocks(ceil_div(elements, layout.block_columns)),
        code_end(ceil_div(elements, kUnit) * layout.element_bits),
        scales(round_up(code_end, kAligned)),
        scale_end(scales + blocks * layout.scale_bytes),
        bytes(round_up(scale_end, kAligned)),
        numbers(blocks * layout.block_columns) {}

  // What no element has of a part's bytes, so that all of them are known.
  NC_EVERYWHERE void zero_gaps(uint8_t* part) const {
    for (int64_t at = code_end; at < scales; ++at) part[at] = 0;
    for (int64_t at = scale_end; at < bytes; ++at) part[at] = 0;
  }

 private:
  static constexpr int64_t kAligned = 16;
};

// The rank whose part lies in a slot: the own one has none.
NC_EVERYWHERE int64_t rank_of_slot(const nc_parts& parts, int64_t slot) {
  return slot + (slot >= parts.rank ? 1 : 0);
}

// The number of the first element that goes to a rank, as random words count the elements of all
// senders.
NC_EVERYWHERE uint64_t first_number(const nc_parts& parts, const PartLayout& part, int64_t rank) {
  const uint64_t before = parts.sender * static_cast<uint64_t>(parts.ranks);
  return (before + static_cast<uint64_t>(rank)) * static_cast<uint64_t>(part.numbers);
}

// A sum divided; a NaN is the same on every machine.
NC_EVERYWHERE float quotient_of(float sum, float divisor) {
  const float quotient = sum / divisor;
  return is_nan(quotient) ? std::numeric_limits<float>::quiet_NaN() : quotient;
}

}  // namespace narrowcast::inline NC_VARIANT
