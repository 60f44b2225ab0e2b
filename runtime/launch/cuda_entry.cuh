// A thread block's entry of a launch's tables. The first warp finds it and brings it to shared
// memory, all words at once: a block whose threads went from pointer to pointer by themselves would
// wait for memory once more at each of them, before its first load of data.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/cuda_launch.cuh"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

struct alignas(8) CudaEntry {
  nc_tensor tensor;
  nc_step step;  // undefined outside an update
  int64_t index;
  float amax;  // the launch's, when the block began; 0 if it has none
  int32_t stopped;
};

__device__ __forceinline__ const void* grad_of(const nc_launch& launch, const CudaEntry& entry) {
  return launch.steps == nullptr ? nullptr : entry.step.grad;
}

// The last tensor whose first tile is not above `tile`, by a whole warp: 32 tensors a comparison.
__device__ __forceinline__ int64_t find_tensor(const nc_tensor* tensors, int64_t count,
                                               int64_t tile, int lane) {
  int first = 0, left = static_cast<int>(count);
  while (left > 1) {
    const int stride = (left + kWarpSize - 1) / kWarpSize, probe = lane * stride;
    const bool begins = probe < left && tensors[first + probe].first_tile <= tile;
    const int passed = (__popc(__ballot_sync(~0u, begins)) - 1) * stride;
    first += passed;
    left = lesser(stride, left - passed);
  }
  return first;
}

// The words of tensor and step, one a lane.
__device__ __forceinline__ void copy_entry(const nc_tensor* tensor, const nc_step* step,
                                           CudaEntry& entry, int lane) {
  constexpr int kTensorWords = sizeof(nc_tensor) / 8, kStepWords = sizeof(nc_step) / 8;
  static_assert(sizeof(nc_tensor) % 8 == 0 && sizeof(nc_step) % 8 == 0);
  static_assert(offsetof(CudaEntry, step) == sizeof(nc_tensor));
  static_assert(kTensorWords + kStepWords <= kWarpSize);
  const uint64_t* source = lane < kTensorWords
                               ? reinterpret_cast<const uint64_t*>(tensor) + lane
                               : reinterpret_cast<const uint64_t*>(step) + (lane - kTensorWords);
  if (lane < kTensorWords + (step == nullptr ? 0 : kStepWords))
    reinterpret_cast<uint64_t*>(&entry)[lane] = *source;
}

// By all threads of a block. False if nothing of the tensor may change. `number`: of a tile, if
// kOfTile, or else of a tensor.
template <bool kOfTile>
__device__ __forceinline__ bool load_entry(const CudaLaunch& parameters, CudaEntry& entry,
                                           int64_t number) {
  const nc_launch& launch = parameters.launch;
  if (threadIdx.x < kWarpSize) {
    const int lane = thread_number();
    const nc_tensor* tensors = launch.host_tables ? parameters.tensors : launch.tensors;
    const nc_step* steps = launch.host_tables ? parameters.steps : launch.steps;
    const float found_inf = launch.found_inf == nullptr ? 0.0f : *launch.found_inf;
    const int64_t index = kOfTile ? find_tensor(tensors, launch.count, number, lane) : number;
    copy_entry(tensors + index, launch.steps == nullptr ? nullptr : steps + index, entry, lane);
    if (lane == 0) {
      entry.index = index;
      entry.amax = launch.amax == nullptr ? 0.0f : launch.amax[index];
      entry.stopped = found_inf != 0 || (launch.verdict != nullptr && launch.verdict[index] < 0);
    }
  }
  __syncthreads();
  return !entry.stopped && (launch.steps == nullptr || entry.step.grad != nullptr);
}

}  // namespace narrowcast::inline NC_VARIANT
