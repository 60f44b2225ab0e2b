// The CPU's functions of mxint8; compiled once for each instruction set.
// Made from spec/mxint8.toml; edit that and run `make regenerate`.
#include "generated/mxint8/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxint8::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::mxint8::inline NC_VARIANT
