// Many tensors, one launch: each tensor owns a run of consecutive tiles.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

// Fills first_tile of each tensor, in order, for a launch of one of the machine's functions; NULL
// means the casts and the updates, whose tiles are the same. An empty tensor has a tile too: a
// scale that spans the tensor is stored even where a shard has no element of it. Returns the number
// of tiles of all.
int64_t assign_tiles(nc_tensor* tensors, int64_t count, const nc_machine& machine,
                     nc_function function = nullptr);

}  // namespace narrowcast
