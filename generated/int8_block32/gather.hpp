// What all-gathers carry of int8_block32, once for packing and for unpacking.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/int8_block32/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_int8_block32::inline NC_VARIANT {

// Both usages have the same blocks, so columnwise is a rearrangement of the rowwise bytes, with the
// same values: every gather carries rowwise, and products of both passes decode it.
struct Gather : Format {
  template <class Carry>
  static void always(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 32x32 block.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
  }
};

}  // namespace narrowcast::format_int8_block32::inline NC_VARIANT
