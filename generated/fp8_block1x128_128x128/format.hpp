// The facts of fp8_block1x128_128x128, for templates and for its plugin's table.
// Made from spec/fp8_block1x128_128x128.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT {

struct Format {
  using Element = E4M3;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 128,
      .scale_per_rows = 1,
      .scale_per_columns = 128,
      .scale_pad_rows = 1,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = true,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = {
      .block_rows = 128,
      .block_columns = 128,
      .scale_per_rows = 128,
      .scale_per_columns = 128,
      .scale_pad_rows = 1,
      .scale_pad_columns = 4,
      .transposed = true,
      .scale_transposed = true,
      .element_bits = 8,
      .scale_bytes = 4,
  };

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 0;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 128 rows holds whole blocks.
  static constexpr int kTileRows = 128;
  // A thread block of the GPU has one tile.
  static constexpr int kStripTiles = 1;
};

inline constexpr nc_format kFacts = {
    .name = "fp8_block1x128_128x128",
    .summary =
        "8-bit floats in groups of 128 along rows and in 128 x 128 blocks transposed, under fp32 "
        "power-of-two scales.",
    .reference = "narrowcast; rowwise as in the DeepSeek-V3 Technical Report, arXiv:2412.19437",
    .element = "e4m3",
    .packing = "dense",
    .scale = "f32",
    .scale_dtype = "float32",
    .tensor_scale = nullptr,
    .scale_rule = "rceil",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 128,
    .shard_row_step = 128,
    .bits_per_element = 8.25,
    .wire_bits_per_element = 8.25,
    .rules =
        {
            {1, 0, "cuts at multiples of 128 rows, 128 columns"},
            {0, 0,
             "its columnwise bytes are not stored as the rowwise bytes of the transposed matrix"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
        },
    .products = {},
    .tensor_range = Format::kTensorRange,
    .significant_bits = 4,
};

}  // namespace narrowcast::format_fp8_block1x128_128x128::inline NC_VARIANT
