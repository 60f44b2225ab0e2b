// The cast of fp8_e5m2, once for both machines.
// Made from spec/fp8_e5m2.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_e5m2/format.hpp"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::format_fp8_e5m2::inline NC_VARIANT {

struct Sequence : Format {
  using TensorBuffers = Buffers<Format>;
  // From the amax to the scale, and from the scale to what codes are multiplied by.
  using Rule = Exact<F32, E5M2>;
  using Decoder = OneLevel<F32>;

  // The scale comes from the amax of the whole tensor, so a pass that finds it goes before this
  // one.
  template <class Tile, class Rounding>
  NC_MACHINE static void cast(Tile& x, const Inputs<Rounding>& in, const TensorBuffers& out) {
    // One scale for the tensor.
    const auto scale = x.tensor_scale(unless_nan(Rule{}, in.tensor_amax));
    const auto codes = x.template encode<E5M2>(scale, in.rounding);
    if (out.rowwise) {
      x.store(out.rowwise_data, codes);
      x.store_scale(out.rowwise_scale, scale);
    }
    // Columnwise: the same scale, so the same codes, stored transposed.
    if (out.columnwise) {
      x.store(out.columnwise_data, codes);
      x.store_scale(out.columnwise_scale, scale);
    }
  }

  // Before a cast of flat shards: their cuts divide no block, for one spans the tensor.
  template <class Tile>
  NC_MACHINE static void collect(const Tile&) {}

  // Columnwise from the rowwise bytes, after a gather.
  template <class Tile>
  NC_MACHINE static void derive_columnwise(Tile& x, const TensorBuffers& out) {
    const auto scale = x.template load_scale<Tile::kRows, Tile::kColumns>(out.rowwise_scale);
    x.store(out.columnwise_data, x.load_codes(out.rowwise_data));
    x.store_scale(out.columnwise_scale, scale);
  }

  template <class Tile>
  NC_MACHINE static void decode_rowwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<Tile::kRows, Tile::kColumns>(from.rowwise_scale);
    x.template decode<E5M2>(x.load_codes(from.rowwise_data), scale, Decoder{});
  }

  template <class Tile>
  NC_MACHINE static void decode_columnwise(Tile& x, const Inputs<>&, const TensorBuffers& from) {
    const auto scale = x.template load_scale<Tile::kRows, Tile::kColumns>(from.columnwise_scale);
    x.template decode<E5M2>(x.load_codes(from.columnwise_data), scale, Decoder{});
  }
};

}  // namespace narrowcast::format_fp8_e5m2::inline NC_VARIANT
