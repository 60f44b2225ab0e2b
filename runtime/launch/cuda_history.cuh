// The histories of delayed scaling on the GPU: a thread block a tensor, a thread an amax.
#pragma once

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/numeric/delayed.hpp"

namespace narrowcast::inline NC_VARIANT {

// Starting a history is recording into an empty one, whose next multiplier is that of the amax
// itself.
template <class Sequence, bool kStart>
__global__ void __launch_bounds__(NC_HISTORY_LENGTH)
    history_kernel(const __grid_constant__ CudaLaunch launch) {
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/false>(launch, entry, blockIdx.x)) return;
  const float amax = entry.amax;
  const int place = thread_number();
  nc_history& history = *entry.tensor.history;
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
  if (entry.tensor.amax != nullptr) *entry.tensor.amax = amax;
}

template <class Sequence, bool kStart>
const char* run_history(const nc_launch* launch) {
  return launch_blocks<history_kernel<Sequence, kStart>>(launch, launch->count, NC_HISTORY_LENGTH);
}

}  // namespace narrowcast::inline NC_VARIANT
