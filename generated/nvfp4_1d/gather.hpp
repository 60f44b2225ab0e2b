// What all-gathers carry of nvfp4_1d, once for packing and for unpacking.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/nvfp4_1d/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT {

// The usages have different blocks, so neither can be made from the other: the forward gathers
// rowwise, the backward columnwise. A gather that serves both passes carries both.
struct Gather : Format {
  template <class Carry>
  static void forward(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 1x16 block, without the padding to 128x4.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
  }

  template <class Carry>
  static void backward(const Carry& carry) {
    // Stored transposed: each rank brings a run of every stored row.
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kColumns));
    // A scale for each 16x1 block, without the padding to 128x4; stored transposed.
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kColumns));
  }

  // Scales travel together, behind the data.
  template <class Carry>
  static void both(const Carry& carry) {
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kColumns));
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows));
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kColumns));
  }
};

}  // namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT
