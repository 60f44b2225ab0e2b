// The GPU's functions of mxint8.
// Made from spec/mxint8.toml; edit that and run `make regenerate`.
#include "generated/mxint8/cast.hpp"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"

namespace narrowcast::mxint8::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
  return kMachine;
}

}  // namespace narrowcast::mxint8::inline NC_VARIANT
