// What the table of the plugin fp8_block128 says of it.
// Made from spec/fp8_block128.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_block128/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::fp8_block128 {

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
            {1, 0, "joints at multiples of 128 rows, 128 columns"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
            {1, 0, "any shape"},
        },
};

}  // namespace narrowcast::fp8_block128
