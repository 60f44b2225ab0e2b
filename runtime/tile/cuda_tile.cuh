// The tile of the GPU's casts: a thread block's piece of the matrix in registers, and the
// operations that the generated sequences make codes with. kWarps warps hold 8 * kWarps rows x 128
// columns, 8 rows x 4 columns a thread. What lies outside the matrix, or is another owner's, counts
// as zero and is never written.
#pragma once

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_amax.cuh"
#include "runtime/tile/cuda_data.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_exchange.cuh"
#include "runtime/tile/cuda_lines.cuh"
#include "runtime/tile/cuda_memory.cuh"
#include "runtime/tile/cuda_scale.cuh"

namespace narrowcast::inline NC_VARIANT {

template <int kWarps, Owned kOwned>
struct CudaTile : CudaPlace<kWarps, kOwned> {
  using Place = CudaPlace<kWarps, kOwned>;
  using Place::kColumns, Place::kFull, Place::kRows, Place::lane, Place::matrix, Place::offset,
      Place::Place, Place::part, Place::stage, Place::warp;

  float x[kThreadRows][kThreadColumns];

  // The largest magnitude of each R x C block: in the thread, then across lanes, then across warps.
  // fmaxf drops NaN, as long as one of the two is none.
  template <int R, int C>
  __device__ __forceinline__ auto block_amax() const {
    using Blocks = ThreadBlocks<R, C>;
    float largest[Blocks::kDown][Blocks::kAcross];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        float& of_block = largest[r / Blocks::kRows][c / Blocks::kColumns];
        const bool first = r % Blocks::kRows == 0 && c % Blocks::kColumns == 0;
        of_block = first ? fabsf(x[r][c]) : fmaxf(of_block, fabsf(x[r][c]));
      }
    }
    CudaAmax<EvenShare<R, C>, Place> amax(*this, largest);
    if constexpr (!kFull) amax.share();
    return amax;
  }

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

  // The largest magnitude of this warp's rows, in all its lanes.
  __device__ __forceinline__ float warp_amax() const {
    return block_amax<kThreadRows, kColumns>().value[0][0];
  }

  // One scale for the whole tile.
  template <class Stored>
  __device__ __forceinline__ auto tensor_scale(const Scale<Stored>& scale) const {
    CudaScales<WholeShare<kRows, kColumns>, Stored> scales;
    scales.multiplier[0][0] = scale.multiplier;
    scales.stored[0][0] = scale.stored;
    return scales;
  }

  template <class Element, class Scales, class Rounding>
  __device__ __forceinline__ auto encode(const Scales& scales, const Rounding& rounding) const {
    const auto scaled = [&](int r, int c) { return x[r][c] * scales.multiplier_of(r, c); };
    if constexpr (HasLines<Element> && std::is_same_v<Rounding, Nearest>) {
      return LineCodes<Element>(scaled);
    } else {
      CudaCodes codes;
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        const float row[kThreadColumns] = {scaled(r, 0), scaled(r, 1), scaled(r, 2), scaled(r, 3)};
        codes.row[r] = encode4<Element>(row, rounding, offset() + r * matrix.columns);
      }
      return codes;
    }
  }

  template <class Buffer, class Codes>
  __device__ __forceinline__ void store(const Buffer& data, const Codes& codes) const {
    uint8_t* bytes = in_global_memory(data.bytes);
    if constexpr (!Buffer::kLayout.transposed) {
      store_rows<Buffer::kLayout>(*this, bytes, codes);
    } else if constexpr (kOwned != Owned::kSome) {
      store_exchanged<Buffer::kLayout>(*this, bytes, codes);
    } else {
      store_exchanged_bytes<Buffer::kLayout>(*this, bytes, codes);
    }
  }

  template <class Buffer, class Scales>
  __device__ __forceinline__ void store_scale(const Buffer& buffer, const Scales& scales) const {
    store_scales<Buffer::kLayout>(*this, in_global_memory(buffer.scales), scales);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
