// What the table of the plugin int8_block32 says of it.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/int8_block32/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::int8_block32 {

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
            {1, 0, "joints at multiples of 32 rows, 32 columns"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
            {1, 0, "any shape"},
        },
};

}  // namespace narrowcast::int8_block32
