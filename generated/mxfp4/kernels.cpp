// The CPU's functions of mxfp4; compiled once for each instruction set.
// Made from spec/mxfp4.toml; edit that and run `make regenerate`.
#include "generated/mxfp4/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxfp4::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::mxfp4::inline NC_VARIANT
