// The GPU's functions of mxfp8_e5m2.
// Made from spec/mxfp8_e5m2.toml; edit that and run `make regenerate`.
#include "generated/mxfp8_e5m2/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxfp8_e5m2::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::mxfp8_e5m2::inline NC_VARIANT
