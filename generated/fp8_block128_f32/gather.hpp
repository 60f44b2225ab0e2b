// What all-gathers carry of fp8_block128_f32, once for packing and for unpacking.
// Made from spec/fp8_block128_f32.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_block128_f32/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_fp8_block128_f32::inline NC_VARIANT {

// Both usages have the same blocks, so columnwise is a rearrangement of the rowwise bytes, with the
// same values: every gather carries rowwise, and products of both passes decode it.
struct Gather : Format {
  template <class Carry>
  static void always(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 128x128 block, without the padding to 1x4.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
  }
};

}  // namespace narrowcast::format_fp8_block128_f32::inline NC_VARIANT
