// What the table of the plugin fp8_e4m3_delayed says of it.
// Made from spec/fp8_e4m3_delayed.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/fp8_e4m3_delayed/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::fp8_e4m3_delayed {

inline constexpr nc_format kFacts = {
    .name = "fp8_e4m3_delayed",
    .summary = "8-bit floats under one scale for the tensor, taken from earlier steps.",
    .reference = "FP8 Formats for Deep Learning, arXiv:2209.05433",
    .element = "e4m3",
    .packing = "dense",
    .scale = "f32",
    .scale_dtype = "float32",
    .tensor_scale = nullptr,
    .scale_rule = "exact",
    .amax = "delayed",
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
            {1, 0, "joints anywhere, and pieces of one tensor-wide scale"},
            {0, 0,
             "without a master, for a scale spans the whole tensor; with one: exact, through it"},
            {1, 0, "any shape"},
        },
};

}  // namespace narrowcast::fp8_e4m3_delayed
