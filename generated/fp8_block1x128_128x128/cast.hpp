// The cast of fp8_block1x128_128x128, once for both machines.
// Made from spec/fp8_block1x128_128x128.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_block1x128_128x128/format.hpp"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT {

struct Sequence : Format {
  using TensorBuffers = Buffers<Format>;
  // From the amax to the scale, and from the scale to what codes are multiplied by.
  using Rule = Rceil<F32, E4M3>;
  using Decoder = OneLevel<F32>;

  template <class Tile, class Rounding>
  NC_MACHINE static void cast(Tile& x, const Inputs<Rounding>& in, const TensorBuffers& out) {
    // Rowwise: one scale for each 1x128 block.
    if (out.rowwise) {
      const auto scale = x.template block_amax<1, 128>().map(Rule{});
      x.store(out.rowwise_data, x.template encode<E4M3>(scale, in.rounding));
      x.store_scale(out.rowwise_scale, scale);
    }
    // Columnwise: one scale for each 128x128 block; other groups than rowwise, so quantized again.
    if (out.columnwise) {
      const auto scale = x.template block_amax<128, 128>().map(Rule{});
      x.store(out.columnwise_data, x.template encode<E4M3>(scale, in.rounding));
      x.store_scale(out.columnwise_scale, scale);
    }
  }

  // Before a cast of flat shards: the amaxes of their own elements, which owners tell each other
  // where a cut divides a block; the cast then finds those of all.
  template <class Tile>
  NC_MACHINE static void collect(const Tile& x) {
    x.template block_amax<1, 128>();
    x.template block_amax<128, 128>();
  }

  template <class Tile>
  NC_MACHINE static void decode_rowwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<1, 128>(from.rowwise_scale);
    x.template decode<E4M3>(x.load_codes(from.rowwise_data), scale, Decoder{});
  }

  template <class Tile>
  NC_MACHINE static void decode_columnwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<128, 128>(from.columnwise_scale);
    x.template decode<E4M3>(x.load_codes(from.columnwise_data), scale, Decoder{});
  }
};

}  // namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT
