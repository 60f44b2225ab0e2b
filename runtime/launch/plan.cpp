#include "runtime/launch/plan.hpp"

#include "runtime/geometry/geometry.hpp"

namespace narrowcast {

int64_t assign_tiles(nc_tensor* tensors, int64_t count, const nc_machine& machine) {
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; ++i) {
    tensors[i].first_tile = tiles;
    tiles += ceil_div(tensors[i].rows, machine.tile_rows) *
             ceil_div(tensors[i].columns, machine.tile_columns);
  }
  return tiles;
}

}  // namespace narrowcast
