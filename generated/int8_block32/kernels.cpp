// The CPU's functions of int8_block32; compiled once for each instruction set.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#include "generated/int8_block32/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::int8_block32::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::int8_block32::inline NC_VARIANT
