// What all-gathers carry of mxfp8_2d, once for packing and for unpacking.
// Made from spec/mxfp8_2d.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/mxfp8_2d/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_mxfp8_2d::inline NC_VARIANT {

// Both usages have the same blocks, so columnwise is a rearrangement of the rowwise bytes, with the
// same values: every gather carries rowwise, and products of both passes decode it.
struct Gather : Format {
  template <class Carry>
  static void always(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 32x32 block: one of the 32x1 that are stored, without the padding to 128x4.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows, {32, 1}));
  }
};

}  // namespace narrowcast::format_mxfp8_2d::inline NC_VARIANT
