// What all-gathers carry of fp8_block1x128_128x128, once for packing and for unpacking.
// Made from spec/fp8_block1x128_128x128.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_block1x128_128x128/format.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT {

// The usages have different blocks, so neither can be made from the other: the forward gathers
// rowwise, the backward columnwise. A gather that serves both passes carries both.
struct Gather : Format {
  template <class Carry>
  static void forward(const Carry& carry) {
    // Ranks bring stored rows, so what arrives can be the buffer itself.
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    // A scale for each 1x128 block, without the padding to 1x4; stored transposed.
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kColumns));
  }

  template <class Carry>
  static void backward(const Carry& carry) {
    // Stored transposed: each rank brings a run of every stored row.
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kColumns));
    // A scale for each 128x128 block, without the padding to 1x4; stored transposed.
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kColumns));
  }

  // Scales travel together, behind the data.
  template <class Carry>
  static void both(const Carry& carry) {
    carry(data(NC_ROWWISE_DATA, kRowwise, Along::kRows));
    carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kColumns));
    carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kColumns));
    carry(scales(NC_COLUMNWISE_SCALE, kColumnwise, Along::kColumns));
  }
};

}  // namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT
