#include "runtime/launch/plan.hpp"

#include "runtime/geometry/geometry.hpp"

namespace narrowcast {

int64_t assign_tiles(nc_tensor* tensors, int64_t count, const nc_machine& machine) {
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; ++i) {
    tensors[i].first_tile = tiles;
    const int64_t own = ceil_div(tensors[i].rows, machine.tile_rows) *
                        ceil_div(tensors[i].columns, machine.tile_columns);
    tiles += own == 0 ? 1 : own;
  }
  return tiles;
}

}  // namespace narrowcast
