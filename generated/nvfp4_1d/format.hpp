// The facts of nvfp4_1d, for templates and for its plugin's table.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT {

struct Format {
  using Element = E2M1;
  using ScaleType = E4M3Scale;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 16,
      .scale_per_rows = 1,
      .scale_per_columns = 16,
      .scale_pad_rows = 128,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 4,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = true;
  static constexpr bool kDelayedAmax = false;
  static constexpr float kTensorRange = 2688;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 64 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 64;
  // Where the GPU casts many tensors, or parts of some, a thread block has 4 tiles, one below the
  // other, so that transposed data is stored in runs of 128 bytes.
  static constexpr int kStripTiles = 4;
};

inline constexpr nc_format kFacts = {
    .name = "nvfp4_1d",
    .summary = "4-bit floats in groups of 16 under two levels of scales.",
    .reference = "NVIDIA, Pretraining Large Language Models with NVFP4, arXiv:2509.25149",
    .element = "e2m1",
    .packing = "dense",
    .scale = "e4m3",
    .scale_dtype = "uint8",
    .tensor_scale = "f32",
    .scale_rule = "nearest_even",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 16,
    .shard_row_step = 16,
    .bits_per_element = 4.5,
    .wire_bits_per_element = 4.5,
    .rules =
        {
            {1, 0, "cuts at multiples of 16 rows, 16 columns"},
            {0, 0,
             "its columnwise bytes are quantized in blocks of their own, so the transposed matrix "
             "would have other values"},
            {0, 0,
             "without a master, for a scale spans the whole tensor; with one: exact, through it"},
        },
    .products = {},
    .tensor_range = Format::kTensorRange,
    .significant_bits = 6,
};

}  // namespace narrowcast::format_nvfp4_1d::inline NC_VARIANT
