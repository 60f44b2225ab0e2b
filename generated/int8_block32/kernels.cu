// The GPU's functions of int8_block32.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#include "generated/int8_block32/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::int8_block32::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::int8_block32::inline NC_VARIANT
