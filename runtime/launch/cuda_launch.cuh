// One thread block a tile, one launch for all tensors.
#pragma once

#include <cstdint>

#include "runtime/machine.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

template <void (*kKernel)(const nc_launch)>
const char* launch_tiles(const nc_launch* launch, int threads) {
  if (launch->tiles == 0) return nullptr;
  if (launch->tiles > INT32_MAX)
    return "the launch has more tiles than a CUDA grid can hold (2^31 - 1): split it";
  kKernel<<<static_cast<unsigned>(launch->tiles), threads, 0,
            static_cast<cudaStream_t>(launch->stream)>>>(*launch);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace narrowcast::inline NC_VARIANT
