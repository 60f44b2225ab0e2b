// The facts of fp8_e4m3, for templates and for its plugin's table.
// Made from spec/fp8_e4m3.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_fp8_e4m3::inline NC_VARIANT {

struct Format {
  using Element = E4M3;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 0,
      .block_columns = 0,
      .scale_per_rows = 0,
      .scale_per_columns = 0,
      .scale_pad_rows = 0,
      .scale_pad_columns = 0,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = true;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 0;
  static constexpr bool kColumnwiseDerived = true;
  // A tile of 32 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 32;
  // A thread block of the GPU has one tile.
  static constexpr int kStripTiles = 1;
};

inline constexpr nc_format kFacts = {
    .name = "fp8_e4m3",
    .summary = "8-bit floats under one scale for the tensor.",
    .reference = "FP8 Formats for Deep Learning, arXiv:2209.05433",
    .element = "e4m3",
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
    .row_step = 1,
    .shard_row_step = 1,
    .bits_per_element = 8,
    .wire_bits_per_element = 8,
    .rules =
        {
            {1, 0, "cuts anywhere"},
            {1, 0, "the usages change places, over the same buffers"},
            {0, 0,
             "without a master, for a scale spans the whole tensor; with one: exact, through it"},
        },
    .products =
        {
            .input = "fp8_e4m3",
            .gradient = "fp8_e5m2",
            .product =
                {
                    {NC_TENSOR_BY_TENSOR, 0,
                     "input rowwise (e4m3, one scale) by weight rowwise (e4m3, one scale): one "
                     "scale by one scale."},
                    {NC_TENSOR_BY_TENSOR, 0,
                     "gradient rowwise (e5m2, one scale) by weight columnwise (e4m3, one scale): "
                     "one scale by one scale."},
                    {NC_TENSOR_BY_TENSOR, 0,
                     "gradient columnwise (e5m2, one scale) by input columnwise (e4m3, one scale): "
                     "one scale by one scale."},
                },
            .stochastic_gradient = false,
        },
    .tensor_range = Format::kTensorRange,
    .significant_bits = 4,
};

}  // namespace narrowcast::format_fp8_e4m3::inline NC_VARIANT
