// The facts of mxfp4, for templates and for its plugin's table.
// Made from spec/mxfp4.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_mxfp4::inline NC_VARIANT {

struct Format {
  using Element = E2M1;
  using ScaleType = E8M0;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 32,
      .scale_per_rows = 1,
      .scale_per_columns = 32,
      .scale_pad_rows = 128,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 4,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 0;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 64 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 64;
  // Where the GPU casts many tensors, or parts of some, a thread block has 4 tiles, one below the
  // other, so that transposed data is stored in runs of 128 bytes.
  static constexpr int kStripTiles = 4;
};

inline constexpr nc_format kFacts = {
    .name = "mxfp4",
    .summary = "4-bit floats in groups of 32 under a power-of-two scale.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "e2m1",
    .packing = "dense",
    .scale = "e8m0",
    .scale_dtype = "uint8",
    .tensor_scale = nullptr,
    .scale_rule = "even",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
    .bits_per_element = 4.25,
    .wire_bits_per_element = 4.25,
    .rules =
        {
            {1, 0, "cuts at multiples of 32 rows, 32 columns"},
            {0, 0,
             "its columnwise bytes are quantized in blocks of their own, so the transposed matrix "
             "would have other values"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
        },
    .products = {},
    .tensor_range = Format::kTensorRange,
    .significant_bits = 2,
};

}  // namespace narrowcast::format_mxfp4::inline NC_VARIANT
