// What a kernel is launched with: a launch, and its tables where they are the host's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/machine.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// The tables are used if launch.host_tables is set.
struct CudaLaunch {
  nc_launch launch;
  nc_tensor tensors[NC_PARAMETER_TENSORS];
  nc_step steps[NC_PARAMETER_TENSORS];
};
static_assert(sizeof(CudaLaunch) <= 4096);

template <void (*kKernel)(const CudaLaunch)>
const char* launch_blocks(const nc_launch* launch, int64_t blocks, int threads) {
  if (blocks == 0) return nullptr;
  if (blocks > INT32_MAX)
    return "the launch has more tiles than a CUDA grid can hold (2^31 - 1): split it";
  CudaLaunch parameters{*launch, {}, {}};
  if (launch->host_tables) {
    if (launch->count > NC_PARAMETER_TENSORS)
      return "the launch has more tensors than fit among a kernel's parameters: put its tables "
             "into the GPU's memory";
    std::copy_n(launch->tensors, launch->count, parameters.tensors);
    if (launch->steps != nullptr) std::copy_n(launch->steps, launch->count, parameters.steps);
  }
  kKernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(launch->stream)>>>(
      parameters);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <void (*kKernel)(const CudaLaunch)>
const char* launch_tiles(const nc_launch* launch, int threads) {
  return launch_blocks<kKernel>(launch, launch->tiles, threads);
}

}  // namespace narrowcast::inline NC_VARIANT
