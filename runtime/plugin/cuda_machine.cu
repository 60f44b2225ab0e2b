// A format's functions on the GPU; see cpu_machine.cpp.
#include "cast.hpp"
#include "gather.hpp"
#include "runtime/gather/cuda_transfer.cuh"
#include "runtime/launch/cuda_kernels.cuh"
#include "runtime/launch/machine_table.hpp"
#include "runtime/reduce/cuda_parts.cuh"

namespace narrowcast::NC_FORMAT::inline NC_VARIANT {

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine =
      machine_table<Sequence, CudaKernels<Sequence>, CudaParts<Sequence>>(
          kWarpColumns, cuda_transfer<Gather, Packing>, cuda_transfer<Gather, Unpacking>);
  return kMachine;
}

}  // namespace narrowcast::NC_FORMAT::inline NC_VARIANT
