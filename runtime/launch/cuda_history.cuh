// The histories of delayed scaling on the GPU: a thread block a tensor, a thread an amax.
#pragma once

#include "runtime/launch/cuda_launch.cuh"
#include "runtime/numeric/delayed.hpp"

namespace narrowcast::inline NC_VARIANT {

// Starting a history is recording into an empty one, whose next multiplier is that of the amax
// itself.
template <class Sequence, bool kStart>
__global__ void __launch_bounds__(NC_HISTORY_LENGTH)
    history_kernel(const __grid_constant__ nc_launch launch) {
  if (launch.found_inf != nullptr && *launch.found_inf != 0) return;
  if (launch.steps != nullptr && launch.steps[blockIdx.x].grad == nullptr) return;
  const nc_tensor& tensor = launch.tensors[blockIdx.x];
  const float amax = launch.amax[blockIdx.x];
  const int place = static_cast<int>(threadIdx.x);
  nc_history& history = *tensor.history;
  const float mine = place == 0 ? amax : kStart ? 0.0f : history.amax[place - 1];
  // Magnitudes order like their bits. The barrier also keeps every read above every write.
  __shared__ unsigned largest;
  if (place == 0) largest = 0;
  __syncthreads();
  const unsigned of_warp = __reduce_max_sync(~0u, bits_of(mine));
  if (place % warpSize == 0) atomicMax(&largest, of_warp);
  __syncthreads();
  history.amax[place] = mine;
  if (place != 0) return;
  using Rule = typename Sequence::Rule;
  history.present = kStart ? Rule{}(amax).multiplier : history.next;
  history.next =
      kStart ? history.present : next_multiplier<Rule>(float_of(largest), history.present);
  if (tensor.amax != nullptr) *tensor.amax = amax;
}

template <class Sequence, bool kStart>
const char* run_history(const nc_launch* launch) {
  if (launch->count == 0) return nullptr;
  history_kernel<Sequence, kStart><<<static_cast<unsigned>(launch->count), NC_HISTORY_LENGTH, 0,
                                     static_cast<cudaStream_t>(launch->stream)>>>(*launch);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace narrowcast::inline NC_VARIANT
