// The facts of mxint8, for templates and for its plugin's table.
// Made from spec/mxint8.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_mxint8::inline NC_VARIANT {

struct Format {
  using Element = MxInteger8;
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
      .element_bits = 8,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = {
      .block_rows = 32,
      .block_columns = 1,
      .scale_per_rows = 32,
      .scale_per_columns = 1,
      .scale_pad_rows = 4,
      .scale_pad_columns = 128,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 1,
  };

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 0;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 32 rows holds whole blocks.
  static constexpr int kTileRows = 32;
  // A thread block of the GPU has one tile.
  static constexpr int kStripTiles = 1;
};

inline constexpr nc_format kFacts = {
    .name = "mxint8",
    .summary = "8-bit integers in groups of 32 under a power-of-two scale.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "int8",
    .packing = "dense",
    .scale = "e8m0",
    .scale_dtype = "uint8",
    .tensor_scale = nullptr,
    .scale_rule = "floor",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
    .bits_per_element = 8.25,
    .wire_bits_per_element = 8.25,
    .rules =
        {
            {1, 0, "cuts at multiples of 32 rows, 32 columns"},
            {0, 0,
             "its columnwise bytes are not stored as the rowwise bytes of the transposed matrix"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
        },
    .products = {},
    .tensor_range = Format::kTensorRange,
    .significant_bits = 7,
};

}  // namespace narrowcast::format_mxint8::inline NC_VARIANT
