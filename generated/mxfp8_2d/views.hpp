// How a cut of a mxfp8_2d matrix's rows lies in each buffer, and which gather carries it.
// Made from spec/mxfp8_2d.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::mxfp8_2d {

inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    // buffer, dimension, rows, entries, pad, repeat, gather, reserved
    {NC_ROWWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_ALWAYS, 0},
    {NC_ROWWISE_SCALE, 0, 1, 1, 128, {32, 1}, NC_GATHER_ALWAYS, 0},
    {NC_COLUMNWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_NEVER, 0},
    {NC_COLUMNWISE_SCALE, 0, 32, 1, 4, {1, 32}, NC_GATHER_NEVER, 0},
};

}  // namespace narrowcast::mxfp8_2d
