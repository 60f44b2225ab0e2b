// The step of parameters that no format stores: the same arithmetic, over flat runs of elements.
//
// In nc_tensor, rows is 1 and columns the number of elements, `value` the fp32 master, and
// `parameter` the bf16 or fp16 copy (of value_dtype) that receives the master rounded, or NULL
// where the parameter is its own master. Where the copy is not the master rounded, it was written
// to since the last step, and the update begins with it.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

// As a plugin that has no format, and whose machines have `updates` alone.
const nc_plugin& plain_plugin();

}  // namespace narrowcast
