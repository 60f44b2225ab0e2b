#include "runtime/launch/plan.hpp"

#include "runtime/geometry/geometry.hpp"

namespace narrowcast {
namespace {

int64_t tile_rows(const nc_machine& machine, nc_function function) {
  if (function == nullptr) return machine.tile_rows;
  if (function == machine.dequantize_columnwise) return machine.decode_tile_rows;
  if (function == machine.derive_columnwise) return machine.derive_tile_rows;
  return machine.tile_rows;
}

}  // namespace

int64_t assign_tiles(nc_tensor* tensors, int64_t count, const nc_machine& machine,
                     nc_function function) {
  const int64_t rows = tile_rows(machine, function);
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; ++i) {
    tensors[i].first_tile = tiles;
    const int64_t own =
        ceil_div(tensors[i].rows, rows) * ceil_div(tensors[i].columns, machine.tile_columns);
    tiles += own == 0 ? 1 : own;
  }
  return tiles;
}

}  // namespace narrowcast
