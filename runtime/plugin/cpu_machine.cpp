// A format's functions on the CPU: compiled once for each format and instruction set. The build
// names the format, NC_FORMAT, and finds its generated headers.
#include "cast.hpp"
#include "gather.hpp"
#include "runtime/gather/cpu_transfer.hpp"
#include "runtime/launch/cpu_kernels.hpp"
#include "runtime/launch/machine_table.hpp"
#include "runtime/reduce/cpu_parts.hpp"

namespace narrowcast::NC_FORMAT::inline NC_VARIANT {

const nc_machine& cpu_machine() {
  using Kernels = CpuKernels<Sequence>;
  static constexpr nc_machine kMachine = machine_table<Sequence, Kernels, CpuParts<Sequence>>(
      Kernels::Tile::kColumns, cpu_transfer<Gather, Packing>, cpu_transfer<Gather, Unpacking>);
  return kMachine;
}

}  // namespace narrowcast::NC_FORMAT::inline NC_VARIANT
