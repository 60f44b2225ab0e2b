// What all-gathers carry of fp8_e4m3_delayed, once for packing and for unpacking.
// Made from spec/fp8_e4m3_delayed.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_e4m3_delayed/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_fp8_e4m3_delayed::inline NC_VARIANT {

// Both usages have the same blocks, so columnwise is a rearrangement of the rowwise bytes, with the
// same values: every gather carries rowwise, and products of both passes decode it.
struct Gather : Format {
  template <class Carry>
  static void always(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself. Every rank has the scale,
    // which spans the tensor.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
  }
};

}  // namespace narrowcast::format_fp8_e4m3_delayed::inline NC_VARIANT
