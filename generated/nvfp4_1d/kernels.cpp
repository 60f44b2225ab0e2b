// The CPU's functions of nvfp4_1d; compiled once for each instruction set.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#include "generated/nvfp4_1d/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::nvfp4_1d::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::nvfp4_1d::inline NC_VARIANT
