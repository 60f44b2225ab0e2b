// What the table of the plugin mxfp8_e4m3 says of it.
// Made from spec/mxfp8_e4m3.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/mxfp8_e4m3/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::mxfp8_e4m3 {

inline constexpr nc_format kFacts = {
    .name = "mxfp8_e4m3",
    .summary = "OCP MXFP8: e4m3 elements, one power-of-two scale for each 32 of them.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "e4m3",
    .packing = "dense",
    .scale = "e8m0",
    .scale_dtype = "uint8",
    .tensor_scale = nullptr,
    .scale_rule = "rceil",
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
            {1, 0, "joints at multiples of 32 rows, 32 columns"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
            {1, 0, "any shape"},
        },
};

}  // namespace narrowcast::mxfp8_e4m3
