// How a cut of a fp8_block128 matrix's rows lies in each buffer, and which gather carries it.
// Made from spec/fp8_block128.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast::fp8_block128 {

inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
    // buffer, dimension, rows, entries, pad, repeat, gather, reserved
    {NC_ROWWISE_DATA, 0, 1, 1, 1, {1, 1}, NC_GATHER_ALWAYS, 0},
    {NC_ROWWISE_SCALE, 0, 128, 1, 1, {1, 1}, NC_GATHER_ALWAYS, 0},
    {NC_COLUMNWISE_DATA, 1, 1, 1, 1, {1, 1}, NC_GATHER_NEVER, 0},
    {NC_COLUMNWISE_SCALE, 1, 128, 1, 4, {1, 1}, NC_GATHER_NEVER, 0},
};

}  // namespace narrowcast::fp8_block128
