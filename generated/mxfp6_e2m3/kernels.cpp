// The CPU's functions of mxfp6_e2m3; compiled once for each instruction set.
// Made from spec/mxfp6_e2m3.toml; edit that and run `make regenerate`.
#include "generated/mxfp6_e2m3/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT
