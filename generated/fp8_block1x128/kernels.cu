// The GPU's functions of fp8_block1x128.
// Made from spec/fp8_block1x128.toml; edit that and run `make regenerate`.
#include "generated/fp8_block1x128/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::fp8_block1x128::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::fp8_block1x128::inline NC_VARIANT
