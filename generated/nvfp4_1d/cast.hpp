// The cast of nvfp4_1d, once for both machines.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/nvfp4_1d/format.hpp"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT {

struct Sequence : Format {
  using TensorBuffers = Buffers<Format>;
  // From the amax to the scale, and from the scale to what codes are multiplied by.
  using Rule = NearestEven<E4M3Scale, E2M1>;
  using Decoder = TwoLevels<E2M1>;

  // The tensor scale comes from the amax of the whole tensor, so a pass that finds it goes before
  // this one.
  template <class Tile, class Rounding>
  NC_MACHINE static void cast(Tile& x, const Inputs<Rounding>& in, const TensorBuffers& out) {
    // Rowwise: one scale for each 1x16 block.
    if (out.rowwise) {
      const auto scale = x.template block_amax<1, 16>().map(Rule{in.tensor_amax});
      x.store(out.rowwise_data, x.template encode<E2M1>(scale, in.rounding));
      x.store_scale(out.rowwise_scale, scale);
    }
    // Columnwise: one scale for each 16x1 block; other groups than rowwise, so quantized again.
    if (out.columnwise) {
      const auto scale = x.template block_amax<16, 1>().map(Rule{in.tensor_amax});
      x.store(out.columnwise_data, x.template encode<E2M1>(scale, in.rounding));
      x.store_scale(out.columnwise_scale, scale);
    }
  }

  // Before a cast of flat shards: the amaxes of their own elements, which owners tell each other
  // where a cut divides a block; the cast then finds those of all.
  template <class Tile>
  NC_MACHINE static void collect(const Tile& x) {
    x.template block_amax<1, 16>();
    x.template block_amax<16, 1>();
  }

  template <class Tile>
  NC_MACHINE static void decode_rowwise(Tile& x, const Inputs<>& in, const TensorBuffers& from) {
    const auto scale = x.template load_scale<1, 16>(from.rowwise_scale);
    x.template decode<E2M1>(x.load_codes(from.rowwise_data), scale, Decoder{in.tensor_amax});
  }

  template <class Tile>
  NC_MACHINE static void decode_columnwise(Tile& x, const Inputs<>& in, const TensorBuffers& from) {
    const auto scale = x.template load_scale<16, 1>(from.columnwise_scale);
    x.template decode<E2M1>(x.load_codes(from.columnwise_data), scale, Decoder{in.tensor_amax});
  }
};

}  // namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT
