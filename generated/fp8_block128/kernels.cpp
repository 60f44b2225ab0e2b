// The CPU's functions of fp8_block128; compiled once for each instruction set.
// Made from spec/fp8_block128.toml; edit that and run `make regenerate`.
#include "generated/fp8_block128/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::fp8_block128::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::fp8_block128::inline NC_VARIANT
