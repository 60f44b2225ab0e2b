// What the table of the plugin mxint8 says of it.
// Made from spec/mxint8.toml; edit that and run `make regenerate`.
#pragma once

#include "generated/mxint8/format.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::mxint8 {

inline constexpr nc_format kFacts = {
    .name = "mxint8",
    .summary = "8-bit integers in groups of 32 under a power-of-two scale.",
    .reference = "OCP Microscaling Formats (MX) Specification 1.0",
    .element = "int8",
    .packing = "dense",
    .scale = "e8m0",
    .scale_dtype = "uint8",
    .tensor_scale = nullptr,
    .scale_rule = "floor",
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

}  // namespace narrowcast::mxint8
