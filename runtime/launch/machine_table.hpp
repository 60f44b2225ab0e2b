// A machine's entry in a plugin's table, from the kernels that a format needs.
#pragma once

#include "runtime/machine.hpp"
#include "runtime/optimizer/rule_table.hpp"
#include "runtime/plugin/table.h"
#include "runtime/reduce/part.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Sequence, class Kernels, class Parts>
constexpr nc_machine machine_table(int64_t tile_columns, nc_transfer_function pack,
                                   nc_transfer_function unpack) {
  nc_machine machine{};
  machine.tile_rows = Kernels::kTileRows;
  machine.step_rows = Kernels::kStepRows;
  machine.tile_columns = tile_columns;
  machine.decode_tile_rows[0] = Kernels::kDecodeTileRows[0];
  machine.decode_tile_rows[1] = Kernels::kDecodeTileRows[1];
  machine.derive_tile_rows = Kernels::kDeriveTileRows;
  machine.cast = Kernels::cast;
  machine.collect = Kernels::collect;
  machine.dequantize_rowwise = Kernels::dequantize_rowwise;
  machine.dequantize_columnwise = Kernels::dequantize_columnwise;
  machine.pack = pack;
  machine.unpack = unpack;
  if constexpr (Sequence::kTensorAmax) machine.reduce_amax = Kernels::reduce_amax;
  machine.updates = RuleTable<Rules>::template kUpdates<Kernels>;
  if constexpr (Sequence::kDelayedAmax) {
    machine.start_history = Kernels::start_history;
    machine.record_amax = Kernels::record_amax;
  }
  if constexpr (Sequence::kColumnwiseDerived)
    machine.derive_columnwise = Kernels::derive_columnwise;
  if constexpr (casts_parts(Sequence::kRowwise, Sequence::kTensorAmax)) {
    machine.cast_parts = Parts::cast;
    machine.add_parts = Parts::add;
  }
  return machine;
}

}  // namespace narrowcast::inline NC_VARIANT
