// What the table of the plugin nvfp4_1d says of it.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/nvfp4_1d/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::nvfp4_1d {

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
             "its columnwise bytes are quantized in blocks of their own, so the transposed "
             "matrix would have other values"},
            {1, 0,
             "joints at multiples of 16 rows, 16 columns, and pieces of one tensor-wide scale"},
            {0, 0,
             "without a master, for a scale spans the whole tensor; with one: exact, through it"},
            {1, 0, "columns in multiples of 2 and rows in multiples of 2"},
        },
};

}  // namespace narrowcast::nvfp4_1d
