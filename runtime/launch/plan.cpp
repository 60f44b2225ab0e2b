#include "runtime/launch/plan.hpp"

#include "runtime/launch/find_tensor.hpp"

namespace narrowcast {
namespace {

int64_t tile_rows(const nc_machine& machine, nc_function function) {
  if (function == nullptr) return machine.tile_rows;
  if (function == machine.dequantize_rowwise) return machine.decode_tile_rows[0];
  if (function == machine.dequantize_columnwise) return machine.decode_tile_rows[1];
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
    tiles += tiles_of(tensors[i], rows, machine.tile_columns);
  }
  return tiles;
}

}  // namespace narrowcast
