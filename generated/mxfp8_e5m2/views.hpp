// How a cut of a mxfp8_e5m2 matrix's rows lies in each buffer, and which gather carries it.
// Made from spec/mxfp8_e5m2.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::mxfp8_e5m2 {

inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    // buffer, dimension, rows, entries, pad, repeat, gather, reserved
    {NC_ROWWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_FORWARD, 0},
    {NC_ROWWISE_SCALE, 0, 1, 1, 128, {1, 1}, NC_GATHER_FORWARD, 0},
    {NC_COLUMNWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_BACKWARD, 0},
    {NC_COLUMNWISE_SCALE, 0, 32, 1, 4, {1, 1}, NC_GATHER_BACKWARD, 0},
};

}  // namespace narrowcast::mxfp8_e5m2
