// The largest magnitude of whole tensors, at the speed of a read. A value lies in one run of
// memory, so that a block reads long stretches of it, however the cast's tiles lie.
#pragma once

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_whole.cuh"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/tile/cuda_memory.cuh"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kLargestThreads = 256;

__device__ __forceinline__ int64_t first_of(int64_t a, int64_t b) { return a < b ? a : b; }

// In a thread, of the elements from `begin`, a multiple of 16 bytes, up to `end`.
template <bool kKeepsNan, class Type>
__device__ __forceinline__ float largest_of(const Type* run, int64_t begin, int64_t end) {
  constexpr int kVector = 16 / sizeof(Type), kAtOnce = 4;
  constexpr int64_t kStride = int64_t{kLargestThreads} * kVector;
  const int thread = thread_number();
  float largest = 0;
  const auto take = [&](Type x) { largest = larger_magnitude<kKeepsNan>(largest, widen(x)); };
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

// Raises a tensor's amax to the largest magnitude of a warp's threads. Magnitudes order like their
// bits. Warps do not meet first: their block would end later, and another begin later.
__device__ __forceinline__ void raise_amax(const nc_launch& launch, float largest, float* amax) {
  // Rounding keeps the order, so that the largest value stays it.
  const float source = launch.source_bf16 ? widen(narrow<Bf16>(largest)) : largest;
  const unsigned of_warp = __reduce_max_sync(~0u, bits_of(source));
  unsigned* target = reinterpret_cast<unsigned*>(amax);
  if (threadIdx.x % kWarpSize == 0 && of_warp > *static_cast<volatile unsigned*>(target))
    atomicMax(target, of_warp);
}

// ---- one tensor, as activations are: a block has no table to search before its first load ----

template <int64_t kShare, bool kKeepsNonfinite>
__global__ void __launch_bounds__(kLargestThreads)
    largest_of_one_kernel(const __grid_constant__ CudaWhole one) {
  if (is_stopped(one.launch)) return;
  const nc_tensor& tensor = one.tensor;
  with_dtype(tensor.value_dtype, [&](auto* type) {
    using Type = std::remove_pointer_t<decltype(type)>;
    const auto* run = in_global_memory(static_cast<const Type*>(tensor.value));
    const int64_t from = blockIdx.x * kShare;
    const int64_t to = first_of(from + kShare, tensor.rows * tensor.columns);
    const float largest = largest_of<kKeepsNonfinite>(run, from, to);
    raise_amax(one.launch, kKeepsNonfinite ? nan_unless_finite(largest) : largest, one.launch.amax);
  });
}

inline const char* run_largest_of_one(const nc_launch* launch) {
  constexpr int64_t kShare = 16 << 10;  // elements that a block reads
  const nc_tensor& tensor = launch->tensors[0];
  const auto blocks = static_cast<unsigned>(ceil_div(tensor.rows * tensor.columns, kShare));
  if (blocks == 0) return nullptr;
  return launch->keep_nonfinite
             ? launch_grid<largest_of_one_kernel<kShare, true>>(launch, blocks, kLargestThreads)
             : launch_grid<largest_of_one_kernel<kShare, false>>(launch, blocks, kLargestThreads);
}

// ---- many, by tables ----

// kTiles: whose share of the elements a block reads.
template <int kTileRows, int kTileColumns, int kTiles>
__global__ void __launch_bounds__(kLargestThreads)
    largest_kernel(const __grid_constant__ CudaLaunch parameters) {
  __shared__ CudaEntry entry;
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
        raise_amax(launch, largest_of<false>(run, from, to), launch.amax + entry.index);
      });
    }
    __syncthreads();  // before the entry is another's
    tile = last;
  }
}

template <int kTileRows, int kTileColumns, int kTiles>
const char* run_largest(const nc_launch* launch) {
  if (is_of_one(*launch)) return run_largest_of_one(launch);
  const int64_t blocks = ceil_div(launch->tiles, int64_t{kTiles});
  return launch_blocks<largest_kernel<kTileRows, kTileColumns, kTiles>>(launch, blocks,
                                                                        kLargestThreads);
}

}  // namespace narrowcast::inline NC_VARIANT
