// What all-gathers carry of mxfp8_e5m2, once for packing and for unpacking.
// Made from spec/mxfp8_e5m2.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/mxfp8_e5m2/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_mxfp8_e5m2::inline NC_VARIANT {

// The usages have different blocks, so neither can be made from the other: the forward gathers
// rowwise, the backward columnwise. A gather that serves both passes carries both.
struct Gather : Format {
  template <class Carry>
  static void forward(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 1x32 block, without the padding to 128x4.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
  }

  template <class Carry>
  static void backward(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kRows));
    // A scale for each 32x1 block, without the padding to 4x128.
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kRows));
  }

  // Scales travel together, behind the data.
  template <class Carry>
  static void both(const Carry& carry) {
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kRows));
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kRows));
  }
};

}  // namespace narrowcast::format_mxfp8_e5m2::inline NC_VARIANT
