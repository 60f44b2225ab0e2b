// What all-gathers carry of nvfp4, once for packing and for unpacking.
// Made from spec/nvfp4.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/nvfp4/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_nvfp4::inline NC_VARIANT {

// Both usages have the same blocks, so columnwise is a rearrangement of the rowwise bytes, with the
// same values: every gather carries rowwise, and products of both passes decode it.
struct Gather : Format {
  template <class Carry>
  static void always(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 16x16 block: one of the 16x1 that are stored, without the padding to 128x4.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows, {16, 1}));
  }
};

}  // namespace narrowcast::format_nvfp4::inline NC_VARIANT
