// The GPU's functions of mxfp6_e2m3.
// Made from spec/mxfp6_e2m3.toml; edit that and run `make regenerate`.
#include "generated/mxfp6_e2m3/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT
