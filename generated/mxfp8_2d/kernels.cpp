// The CPU's functions of mxfp8_2d; compiled once for each instruction set.
// Made from spec/mxfp8_2d.toml; edit that and run `make regenerate`.
#include "generated/mxfp8_2d/cast.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxfp8_2d::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
  return kMachine;
}

}  // namespace narrowcast::mxfp8_2d::inline NC_VARIANT
