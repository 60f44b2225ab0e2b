// What owners of flat shards tell each other before a cast that waits for nothing else: the amaxes
// of blocks that cuts divide, and the values in bytes that they divide. A kernel of its own, and a
// short one: nothing of it is in the caches when it begins, and the instructions of a cast's tile
// would take longer to come than the values.
#pragma once

#include <type_traits>

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/tile/cuda_memory.cuh"
#include "runtime/tile/part.hpp"

namespace narrowcast::inline NC_VARIANT {

// Two rows of a tile's columns at a time.
inline constexpr int kCollectThreads = 256;
inline constexpr int kCollectRows = kCollectThreads / kWarpColumns;

// The tile that a generated sequence collects with: of its blocks only those at seams are read.
template <class Type>
struct SeamTile {
  Extent matrix, origin;
  int64_t end_row;  // of the tile
  Part part;
  const Type* value;
  bool source_bf16;
  unsigned* maxima;  // kWarpColumns of them, in shared memory
  int row, column;   // this thread's first, counted in the tile

  template <int R, int C>
  __device__ __forceinline__ void block_amax() const {
#pragma unroll 1
    for (int i = 0; i < std::extent_v<decltype(nc_seams::blocks)>; ++i) {
      const nc_seam& seam = part.seams->blocks[i];
      if (seam.block_rows != R || seam.block_columns != C) continue;
#pragma unroll 1
      for (int64_t at = seam.row; at < seam.row + seam.rows; ++at) {
        if (origin.rows <= at * R && at * R < end_row) tell_amaxes<R, C>(seam, at);
      }
    }
  }

  __device__ __forceinline__ void tell_values() const {
    if (!part.has_values()) return;
#pragma unroll 1
    for (int64_t r = origin.rows + row; r < end_row; r += kCollectRows) {
      const int64_t element = offset(r);
      if (owns(element) && part.has_values(element, element + 1))
        part.value_of(element, rounded(widen(value[element])));
    }
  }

 private:
  __device__ __forceinline__ int64_t offset(int64_t r) const {
    return r * matrix.columns + origin.columns + column;
  }
  __device__ __forceinline__ bool owns(int64_t element) const {
    return origin.columns + column < matrix.columns && part.owns(element);
  }
  __device__ __forceinline__ float rounded(float x) const {
    return source_bf16 ? round_to_bf16(x) : x;
  }

  // Of a row of blocks.
  template <int R, int C>
  __device__ __forceinline__ void tell_amaxes(const nc_seam& seam, int64_t block_row) const {
    const int thread = thread_number();
    if (thread < kWarpColumns / C) maxima[thread] = 0;
    __syncthreads();
    atomicMax(maxima + column / C, bits_of(rounded(largest<R>(block_row * R))));
    __syncthreads();
    if (thread < kWarpColumns / C) {
      float amax = float_of(maxima[thread]);
      part.share_amax(seam, block_row, origin.columns / C + thread, amax);
    }
  }

  // The largest magnitude of the thread's own elements in R rows of its column.
  template <int R>
  __device__ __forceinline__ float largest(int64_t first_row) const {
    constexpr int kRows = (R + kCollectRows - 1) / kCollectRows, kBatch = lesser(kRows, 8);
    float most = 0;
#pragma unroll 1
    for (int first = row; first < R; first += kBatch * kCollectRows) {
      Type of_row[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int r = first + i * kCollectRows;
        const int64_t element = offset(first_row + r);
        of_row[i] = r < R && owns(element) ? value[element] : Type{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) most = fmaxf(most, fabsf(widen(of_row[i])));
    }
    return most;
  }
};

// By all threads of a block: what lies in memory, where each of them reads it often.
__device__ __forceinline__ void copy_seams(const nc_seams* source, nc_seams& seams) {
  static_assert(sizeof(nc_seams) % 8 == 0 && sizeof(nc_seams) / 8 <= kCollectThreads);
  const int word = thread_number();
  if (word < static_cast<int>(sizeof(nc_seams) / 8)) {
    reinterpret_cast<uint64_t*>(&seams)[word] =
        in_global_memory(reinterpret_cast<const uint64_t*>(source))[word];
  }
  __syncthreads();
}

template <class Sequence>
__global__ void __launch_bounds__(kCollectThreads)
    collect_kernel(const __grid_constant__ CudaLaunch parameters) {
  __shared__ CudaEntry entry;
  __shared__ nc_seams seams;
  __shared__ unsigned maxima[kWarpColumns];
  constexpr int kRows = Sequence::kTileRows * Sequence::kStripTiles;
  const nc_launch& launch = parameters.launch;
  if (!load_entry</*kOfTile=*/true>(parameters, entry, blockIdx.x)) return;
  const nc_tensor& tensor = entry.tensor;
  if (tensor.seams == nullptr || launch.exchange == nullptr) return;
  copy_seams(tensor.seams, seams);
  Part part(tensor, launch, /*collects=*/true);
  part.seams = &seams;
  const Extent origin = tile_origin(tensor, blockIdx.x, kRows, kWarpColumns);
  const int64_t end_row = tensor.end_row == 0 ? tensor.rows : tensor.end_row;
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    const SeamTile<Type> tile{{tensor.rows, tensor.columns},
                              origin,
                              origin.rows + kRows < end_row ? origin.rows + kRows : end_row,
                              part,
                              in_global_memory(static_cast<const Type*>(tensor.value)),
                              launch.source_bf16 != 0,
                              maxima,
                              thread_number() / kWarpColumns,
                              thread_number() % kWarpColumns};
    tile.tell_values();
    Sequence::collect(tile);
  });
}

}  // namespace narrowcast::inline NC_VARIANT
