// The facts of int8_block32, for templates and for its plugin's table.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_int8_block32::inline NC_VARIANT {

struct Format {
  using Element = Integer8;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 32,
      .block_columns = 32,
      .scale_per_rows = 32,
      .scale_per_columns = 32,
      .scale_pad_rows = 1,
      .scale_pad_columns = 1,
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
  // A tile of 32 rows holds whole blocks.
  static constexpr int kTileRows = 32;
  // A thread block of the GPU has one tile.
  static constexpr int kStripTiles = 1;
};

inline constexpr nc_format kFacts = {
    .name = "int8_block32",
    .summary = "8-bit integers in 32 x 32 blocks under fp32 scales.",
    .reference = "Jetfire: INT8 Data Flow and Per-Block Quantization, arXiv:2403.12422",
    .element = "int8",
    .packing = "dense",
    .scale = "f32",
    .scale_dtype = "float32",
    .tensor_scale = nullptr,
    .scale_rule = "exact",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
    .bits_per_element = 8.03125,
    .wire_bits_per_element = 8.03125,
    .rules =
        {
            {1, 0, "cuts at multiples of 32 rows, 32 columns"},
            {1, 0, "the usages change places, over the same buffers"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
        },
    .products =
        {
            .input = "int8_block32",
            .gradient = "int8_block32",
            .product =
                {
                    {NC_DECODED, 0,
                     "input rowwise (int8, 32x32 f32) by weight rowwise (int8, 32x32 f32): no "
                     "matrix unit multiplies these."},
                    {NC_DECODED, 0,
                     "gradient rowwise (int8, 32x32 f32) by weight columnwise (int8, 32x32 f32): "
                     "no matrix unit multiplies these."},
                    {NC_DECODED, 0,
                     "gradient columnwise (int8, 32x32 f32) by input columnwise (int8, 32x32 f32): "
                     "no matrix unit multiplies these."},
                },
            .stochastic_gradient = false,
        },
    .tensor_range = Format::kTensorRange,
    .significant_bits = 31,
};

}  // namespace narrowcast::format_int8_block32::inline NC_VARIANT
