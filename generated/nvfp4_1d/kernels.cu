// The GPU's functions of nvfp4_1d.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#include "generated/nvfp4_1d/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::nvfp4_1d::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::nvfp4_1d::inline NC_VARIANT
