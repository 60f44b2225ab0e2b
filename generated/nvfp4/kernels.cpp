// The CPU's functions of nvfp4; compiled once for each instruction set.
// Made from spec/nvfp4.toml; edit that and run `make regenerate`.
#include "generated/nvfp4/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::nvfp4::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::nvfp4::inline NC_VARIANT
