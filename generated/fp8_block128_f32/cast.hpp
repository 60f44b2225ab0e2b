// The cast of fp8_block128_f32, once for both machines.
// Made from spec/fp8_block128_f32.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_block128_f32/format.hpp"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::format_fp8_block128_f32::inline NC_VARIANT {

struct Sequence : Format {
  using TensorBuffers = Buffers<Format>;
  // From the amax to the scale, and from the scale to what codes are multiplied by.
  using Rule = Quotient<F32, E4M3>;
  using Decoder = OneLevel<F32>;

  template <class Tile, class Rounding>
  NC_MACHINE static void cast(Tile& x, const Inputs<Rounding>& in, const TensorBuffers& out) {
    // One scale for each 128x128 block.
    const auto scale = x.template block_amax<128, 128>().map(Rule{});
    const auto codes = x.template encode<E4M3>(scale, in.rounding);
    if (out.rowwise) {
      x.store(out.rowwise_data, codes);
      x.store_scale(out.rowwise_scale, scale);
    }
    // Columnwise: the same blocks, so the same codes and scales, stored transposed.
    if (out.columnwise) {
      x.store(out.columnwise_data, codes);
      x.store_scale(out.columnwise_scale, scale);
    }
  }

  // Before a cast of flat shards: the amaxes of their own elements, which owners tell each other
  // where a cut divides a block; the cast then finds those of all.
  template <class Tile>
  NC_MACHINE static void collect(const Tile& x) {
    x.template block_amax<128, 128>();
  }

  // Columnwise from the rowwise bytes, after a gather.
  template <class Tile>
  NC_MACHINE static void derive_columnwise(Tile& x, const TensorBuffers& out) {
    const auto scale = x.template load_scale<128, 128>(out.rowwise_scale);
    x.store(out.columnwise_data, x.load_codes(out.rowwise_data));
    x.store_scale(out.columnwise_scale, scale);
  }

  template <class Tile>
  NC_MACHINE static void decode_rowwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<128, 128>(from.rowwise_scale);
    x.template decode<E4M3>(x.load_codes(from.rowwise_data), scale, Decoder{});
  }

  template <class Tile>
  NC_MACHINE static void decode_columnwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<128, 128>(from.columnwise_scale);
    x.template decode<E4M3>(x.load_codes(from.columnwise_data), scale, Decoder{});
  }
};

}  // namespace narrowcast::format_fp8_block128_f32::inline NC_VARIANT
