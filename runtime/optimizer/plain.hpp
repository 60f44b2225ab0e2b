// The step of parameters that no format stores: the same arithmetic, over matrices, or over runs of
// elements as rows of nc_machine.tile_columns, of which `after` are missing in the last one.
//
// In nc_tensor, `value` is the fp32 master, and buffer[0] the bf16 or fp16 copy (of value_dtype)
// that receives the master rounded, or NULL where the parameter is its own master. Where the copy
// is not the master rounded, it was written to since the last step, and the update begins with it.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

// As a plugin whose format has no name and which has no route, and whose machines have `updates`
// alone.
const nc_plugin& plain_plugin();

}  // namespace narrowcast
