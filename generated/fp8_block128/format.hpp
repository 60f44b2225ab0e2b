// The facts of fp8_block128, for templates and for its plugin's table.
// Made from spec/fp8_block128.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_fp8_block128::inline NC_VARIANT {

struct Format {
  using Element = E4M3;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 128,
      .block_columns = 128,
      .scale_per_rows = 128,
      .scale_per_columns = 128,
      .scale_pad_rows = 1,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 0;
  static constexpr bool kColumnwiseDerived = true;
  // A tile of 128 rows holds whole blocks.
  static constexpr int kTileRows = 128;
  // A thread block of the GPU has one tile.
  static constexpr int kStripTiles = 1;
};

inline constexpr nc_format kFacts = {
    .name = "fp8_block128",
    .summary = "8-bit floats in 128 x 128 blocks under fp32 power-of-two scales.",
    .reference = "DeepSeek-V3 Technical Report, arXiv:2412.19437",
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
    .bits_per_element = 8.001953125,
    .wire_bits_per_element = 8.001953125,
    .rules =
        {
            {1, 0, "cuts at multiples of 128 rows, 128 columns"},
            {1, 0, "the usages change places, over the same buffers"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
        },
    .products =
        {
            .input = "fp8_block1x128_128x128",
            .gradient = "fp8_block1x128",
            .product =
                {
                    {NC_1X128_BY_128X128, 0,
                     "input rowwise (e4m3, 1x128 f32) by weight rowwise (e4m3, 128x128 f32): 1x128 "
                     "by 128x128."},
                    {NC_1X128_BY_128X128, 0,
                     "gradient rowwise (e4m3, 1x128 f32) by weight columnwise (e4m3, 128x128 f32): "
                     "1x128 by 128x128."},
                    {NC_1X128_BY_128X128, 0,
                     "gradient columnwise (e4m3, 128x1 f32) by input columnwise (e4m3, 128x128 "
                     "f32): 1x128 by 128x128."},
                },
            .stochastic_gradient = false,
        },
    .tensor_range = Format::kTensorRange,
    .significant_bits = 4,
};

}  // namespace narrowcast::format_fp8_block128::inline NC_VARIANT
