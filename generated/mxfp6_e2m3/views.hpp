// How a cut of a mxfp6_e2m3 matrix's rows lies in each buffer, and which gather carries it.
// Made from spec/mxfp6_e2m3.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::mxfp6_e2m3 {

inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    // buffer, dimension, rows, entries, pad, repeat, gather, reserved
    {NC_ROWWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_FORWARD, 0},
    {NC_ROWWISE_SCALE, 0, 1, 1, 128, {1, 1}, NC_GATHER_FORWARD, 0},
    {NC_COLUMNWISE_DATA, 1, 4, 3, 1, {1, 1}, NC_GATHER_BACKWARD, 0},
    {NC_COLUMNWISE_SCALE, 1, 32, 1, 4, {1, 1}, NC_GATHER_BACKWARD, 0},
};

}  // namespace narrowcast::mxfp6_e2m3
