// The largest magnitude of whole tensors, at the speed of a read. A value lies in one run of
// memory, so that a block reads long stretches of it, however the cast's tiles lie.
#pragma once

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/find_tensor.hpp"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kLargestThreads = 256;

__device__ __forceinline__ int64_t first_of(int64_t a, int64_t b) { return a < b ? a : b; }

// In a thread, of the elements from `begin`, a multiple of 16 bytes, up to `end`. fmaxf drops NaN.
template <class Type>
__device__ __forceinline__ float largest_of(const Type* run, int64_t begin, int64_t end) {
  constexpr int kVector = 16 / sizeof(Type), kAtOnce = 4;
  constexpr int64_t kStride = int64_t{kLargestThreads} * kVector;
  const int thread = thread_number();
  float largest = 0;
  const auto take = [&](Type x) { largest = fmaxf(largest, fabsf(widen(x))); };
  if (reinterpret_cast<uint64_t>(run) % 16 != 0) {
    for (int64_t i = begin + thread; i < end; i += kLargestThreads) take(run[i]);
    return largest;
  }
  const auto take_all = [&](const uint4& words) {
    const Type* elements = reinterpret_cast<const Type*>(&words);
#pragma unroll
    for (int i = 0; i < kVector; ++i) take(elements[i]);
  };
  const auto load = [&](int64_t i) { return *reinterpret_cast<const uint4*>(run + i); };
  const int64_t whole = begin + (end - begin) / kVector * kVector;
  int64_t i = begin + int64_t{thread} * kVector;
  for (; i + (kAtOnce - 1) * kStride < whole; i += kAtOnce * kStride) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) words[n] = load(i + n * kStride);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) take_all(words[n]);
  }
  for (; i < whole; i += kStride) take_all(load(i));
  if (whole + thread < end) take(run[whole + thread]);
  return largest;
}

// Raises a tensor's amax to the largest magnitude of all threads of a block. Magnitudes order like
// their bits.
__device__ __forceinline__ void raise_amax(float largest, unsigned* shared, float* amax) {
  if (threadIdx.x == 0) *shared = 0;
  __syncthreads();
  const unsigned of_warp = __reduce_max_sync(~0u, bits_of(largest));
  if (threadIdx.x % kWarpSize == 0) atomicMax(shared, of_warp);
  __syncthreads();
  unsigned* target = reinterpret_cast<unsigned*>(amax);
  if (threadIdx.x == 0 && *shared > *static_cast<volatile unsigned*>(target))
    atomicMax(target, *shared);
}

// kTiles: whose share of the elements a block reads.
template <int kTileRows, int kTileColumns, int kTiles>
__global__ void __launch_bounds__(kLargestThreads)
    largest_kernel(const __grid_constant__ CudaLaunch parameters) {
  __shared__ CudaEntry entry;
  __shared__ unsigned shared;
  const nc_launch& launch = parameters.launch;
  const int64_t end = first_of(int64_t{blockIdx.x + 1} * kTiles, launch.tiles);
  int64_t tile = int64_t{blockIdx.x} * kTiles;
  while (tile < end) {
    const bool reads = load_entry</*kOfTile=*/true>(parameters, entry, tile);
    const nc_tensor& tensor = entry.tensor;
    const int64_t tiles = tiles_of(tensor, kTileRows, kTileColumns);
    const int64_t last = first_of(end, tensor.first_tile + tiles);
    if (reads) {
      const int64_t elements = tensor.rows * tensor.columns;
      const int64_t share = ceil_div(ceil_div(elements, tiles), int64_t{16}) * 16;
      const int64_t from = first_of((tile - tensor.first_tile) * share, elements);
      const int64_t to = first_of((last - tensor.first_tile) * share, elements);
      with_dtype(tensor.value_dtype, [&](auto* type) {
        using Type = std::remove_pointer_t<decltype(type)>;
        const auto* run = in_global_memory(static_cast<const Type*>(tensor.value));
        const float largest = largest_of(run, from, to);
        // Rounding keeps the order, so that the largest value stays it.
        raise_amax(launch.source_bf16 ? widen(narrow<Bf16>(largest)) : largest, &shared,
                   launch.amax + entry.index);
      });
    }
    __syncthreads();  // before the entry is another's
    tile = last;
  }
}

template <int kTileRows, int kTileColumns, int kTiles>
const char* run_largest(const nc_launch* launch) {
  const int64_t blocks = ceil_div(launch->tiles, int64_t{kTiles});
  return launch_blocks<largest_kernel<kTileRows, kTileColumns, kTiles>>(launch, blocks,
                                                                        kLargestThreads);
}

}  // namespace narrowcast::inline NC_VARIANT
