// A thread block's piece of a matrix in registers: 8 rows x 4 columns a thread.
#pragma once

#include "runtime/tile/cuda_place.cuh"

namespace narrowcast::inline NC_VARIANT {

template <int kWarps, Owned kOwned>
struct CudaValues : CudaPlace<kWarps, kOwned> {
  using Place = CudaPlace<kWarps, kOwned>;
  using Place::kFull, Place::matrix, Place::offset, Place::part;

  float x[kThreadRows][kThreadColumns];

  __device__ __forceinline__ explicit CudaValues(const Place& place) : Place(place) {}

  // The values of all owners in the bytes that they share, after the own ones have been loaded.
  __device__ __forceinline__ void share_values() {
    if constexpr (!kFull) {
      if (part.seams == nullptr || !part.has_values()) return;
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        const int64_t first = offset() + r * matrix.columns;
        if (!part.has_values(first, first + kThreadColumns)) continue;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          if (this->column() + c < matrix.columns) x[r][c] = part.value_of(first + c, x[r][c]);
        }
      }
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
