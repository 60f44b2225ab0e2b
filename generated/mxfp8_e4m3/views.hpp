// How a cut of the rows of a mxfp8_e4m3 matrix lies in each buffer, and which gather carries it.
// Made from spec/mxfp8_e4m3.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::mxfp8_e4m3 {

// `rows` rows of the matrix are `entries` entries along `dimension`, which is padded to multiples
// of `pad`.
inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    {.buffer = NC_ROWWISE_DATA,
     .dimension = 0,
     .rows = 1,
     .entries = 1,
     .pad = 1,
     .repeat = {1, 1},
     .gather = NC_GATHER_FORWARD,
     .reserved = 0},
    {.buffer = NC_ROWWISE_SCALE,
     .dimension = 0,
     .rows = 1,
     .entries = 1,
     .pad = 128,
     .repeat = {1, 1},
     .gather = NC_GATHER_FORWARD,
     .reserved = 0},
    {.buffer = NC_COLUMNWISE_DATA,
     .dimension = 0,
     .rows = 1,
     .entries = 1,
     .pad = 1,
     .repeat = {1, 1},
     .gather = NC_GATHER_BACKWARD,
     .reserved = 0},
    {.buffer = NC_COLUMNWISE_SCALE,
     .dimension = 0,
     .rows = 32,
     .entries = 1,
     .pad = 4,
     .repeat = {1, 1},
     .gather = NC_GATHER_BACKWARD,
     .reserved = 0},
};

}  // namespace narrowcast::mxfp8_e4m3
