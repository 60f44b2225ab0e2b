// How a cut of the rows of a nvfp4 matrix lies in each buffer, and which gather carries it.
// Made from spec/nvfp4.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::nvfp4 {

// `rows` rows of the matrix are `entries` entries along `dimension`, which is padded to multiples
// of `pad`.
inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    {.buffer = NC_ROWWISE_DATA,
     .dimension = 0,
     .rows = 1,
     .entries = 1,
     .pad = 1,
     .repeat = {1, 1},
     .gather = NC_GATHER_ALWAYS,
     .reserved = 0},
    {.buffer = NC_ROWWISE_SCALE,
     .dimension = 0,
     .rows = 1,
     .entries = 1,
     .pad = 128,
     .repeat = {16, 1},
     .gather = NC_GATHER_ALWAYS,
     .reserved = 0},
    {.buffer = NC_COLUMNWISE_DATA,
     .dimension = 1,
     .rows = 2,
     .entries = 1,
     .pad = 1,
     .repeat = {1, 1},
     .gather = NC_GATHER_NEVER,
     .reserved = 0},
    {.buffer = NC_COLUMNWISE_SCALE,
     .dimension = 1,
     .rows = 16,
     .entries = 1,
     .pad = 4,
     .repeat = {16, 1},
     .gather = NC_GATHER_NEVER,
     .reserved = 0},
};

}  // namespace narrowcast::nvfp4
