// Launches of one tensor that is nothing but full tiles, as the activations and the weights of most
// layers are. Its entry lies among the kernel's parameters, and a tile's place is the block's, so
// that a block neither searches a table nor divides before its first load: in a small tile that
// would be a fifth of all instructions.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_launch.cuh"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

struct CudaWhole {
  nc_launch launch;
  nc_tensor tensor;
};

inline bool is_of_one(const nc_launch& launch) {
  return launch.host_tables && launch.count == 1 && launch.steps == nullptr;
}

inline bool is_whole(const nc_launch& launch, Extent tile) {
  if (!is_of_one(launch)) return false;
  const nc_tensor& tensor = launch.tensors[0];
  constexpr int64_t kMostTilesDown = 65535;  // of a grid
  if (tensor.before != 0 || tensor.after != 0 || tensor.end_row != 0) return false;
  return tensor.rows > 0 && tensor.columns > 0 && tensor.rows % tile.rows == 0 &&
         tensor.columns % tile.columns == 0 && tensor.rows / tile.rows <= kMostTilesDown &&
         whole_words(tensor, nullptr, /*transposed=*/true);
}

__device__ __forceinline__ bool is_stopped(const nc_launch& launch) {
  return (launch.found_inf != nullptr && *launch.found_inf != 0) ||
         (launch.verdict != nullptr && *launch.verdict < 0);
}

__device__ __forceinline__ Extent block_origin(Extent tile) {
  return {blockIdx.y * tile.rows, blockIdx.x * tile.columns};
}

// Of one tensor.
template <void (*kKernel)(const CudaWhole)>
const char* launch_grid(const nc_launch* launch, dim3 grid, int threads) {
  const CudaWhole parameters{*launch, launch->tensors[0]};
  kKernel<<<grid, threads, 0, static_cast<cudaStream_t>(launch->stream)>>>(parameters);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <void (*kKernel)(const CudaWhole)>
const char* launch_whole(const nc_launch* launch, Extent tile, int threads) {
  const nc_tensor& tensor = launch->tensors[0];
  const dim3 grid(static_cast<unsigned>(tensor.columns / tile.columns),
                  static_cast<unsigned>(tensor.rows / tile.rows));
  return launch_grid<kKernel>(launch, grid, threads);
}

}  // namespace narrowcast::inline NC_VARIANT
