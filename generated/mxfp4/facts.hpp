// What the table of the plugin mxfp4 says of it.
// Made from spec/mxfp4.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/mxfp4/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::mxfp4 {

inline constexpr nc_format kFacts = {
    .name = "mxfp4",
    .summary = "4-bit floats in groups of 32 under a power-of-two scale.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "e2m1",
    .packing = "dense",
    .scale = "e8m0",
    .scale_dtype = "uint8",
    .tensor_scale = nullptr,
    .scale_rule = "even",
    .amax = "current",
    .rowwise = Format::kRowwise,
    .columnwise = Format::kColumnwise,
    .columnwise_derived = Format::kColumnwiseDerived,
    .tensor_amax = Format::kTensorAmax,
    .row_step = 32,
    .shard_row_step = 32,
    .bits_per_element = 4.25,
    .wire_bits_per_element = 4.25,
    .rules =
        {
            {1, 0, "cuts at multiples of 32 rows, 32 columns"},
            {0, 0,
             "its columnwise bytes are quantized in blocks of their own, so the transposed "
             "matrix would have other values"},
            {1, 0, "joints at multiples of 32 rows, 32 columns"},
            {1, 0, "the bytes of the value quantized alone, which has blocks of its own"},
            {1, 0, "columns in multiples of 2 and rows in multiples of 2"},
        },
};

}  // namespace narrowcast::mxfp4
