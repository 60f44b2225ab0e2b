// The tile of the GPU: a thread block's piece of the matrix in registers, and the operations that
// the generated sequences are written in. kWarps warps hold 8 * kWarps rows x 128 columns, 8 rows x
// 4 columns a thread. What lies outside the matrix is zero and is never written.
#pragma once

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_data.cuh"
#include "runtime/tile/cuda_scale.cuh"

namespace narrowcast::inline NC_VARIANT {

template <int kWarps, bool kInside>
struct CudaTile : CudaPlace<kWarps, kInside> {
  using Place = CudaPlace<kWarps, kInside>;
  using Place::kColumns, Place::kFull, Place::kRows, Place::lane, Place::matrix, Place::offset,
      Place::Place, Place::stage, Place::warp;

  float x[kThreadRows][kThreadColumns];

  // The largest magnitude of each R x C block: in the thread, then across lanes, then across warps.
  // fmaxf drops NaN.
  template <int R, int C>
  __device__ __forceinline__ CudaBlocks<R, C> block_amax() const {
    using Shape = ThreadBlocks<R, C>;
    CudaBlocks<R, C> amax;
#pragma unroll
    for (int down = 0; down < Shape::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < Shape::kAcross; ++across) {
        float largest = 0;
#pragma unroll
        for (int r = 0; r < Shape::kRows; ++r) {
#pragma unroll
          for (int c = 0; c < Shape::kColumns; ++c) {
            largest =
                fmaxf(largest, fabsf(x[down * Shape::kRows + r][across * Shape::kColumns + c]));
          }
        }
#pragma unroll
        for (int step = 1; step < C / kThreadColumns; step *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        }
        amax.value[down][across] = largest;
      }
    }
    if constexpr (R > kThreadRows) combine_warps<R / kThreadRows>(amax.value[0]);
    return amax;
  }

  // The largest magnitude of this warp's rows, in all its lanes.
  __device__ __forceinline__ float warp_amax() const {
    return block_amax<kThreadRows, kColumns>().value[0][0];
  }

  // One scale for the whole tile.
  template <class Stored>
  __device__ __forceinline__ auto tensor_scale(const Scale<Stored>& scale) const {
    CudaScales<kRows, kColumns, Stored> scales;
    scales.multiplier[0][0] = scale.multiplier;
    scales.stored[0][0] = scale.stored;
    return scales;
  }

  template <class Element, int R, int C, class Stored, class Rounding>
  __device__ __forceinline__ CudaCodes encode(const CudaScales<R, C, Stored>& scales,
                                              const Rounding& rounding) const {
    CudaCodes codes;
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      float scaled[kThreadColumns];
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) scaled[c] = x[r][c] * scales.multiplier_of(r, c);
      codes.row[r] = encode4<Element>(scaled, rounding, offset() + r * matrix.columns);
    }
    return codes;
  }

  // value = decode(code) * decoder(stored scale)
  template <class Element, class Decoder, int R, int C, class Stored>
  __device__ __forceinline__ void decode(const CudaCodes& codes,
                                         const CudaScales<R, C, Stored>& scales,
                                         const Decoder& decoder) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        x[r][c] = Element::decode(codes.row[r] >> 8 * c & 0xff) * decoder(scales.stored_of(r, c));
      }
    }
  }

  template <class Buffer>
  __device__ __forceinline__ void store(const Buffer& data, const CudaCodes& codes) const {
    if constexpr (!Buffer::kLayout.transposed) {
      store_rows<Buffer::kLayout>(*this, data.bytes, codes);
    } else if constexpr (kFull) {
      store_exchanged<Buffer::kLayout>(*this, data.bytes, codes);
    } else {
      store_exchanged_bytes<Buffer::kLayout>(*this, data.bytes, codes);
    }
  }

  template <class Buffer>
  __device__ __forceinline__ CudaCodes load_codes(const Buffer& data) const {
    CudaCodes codes;
    if constexpr (Buffer::kLayout.transposed) {
      load_exchanged<Buffer::kLayout>(*this, data.bytes, codes);
    } else {
      load_rows<Buffer::kLayout>(*this, data.bytes, codes);
    }
    return codes;
  }

  template <class Buffer, int R, int C, class Stored>
  __device__ __forceinline__ void store_scale(const Buffer& buffer,
                                              const CudaScales<R, C, Stored>& scales) const {
    store_scales<Buffer::kLayout>(*this, buffer.scales, scales);
  }

  // The scales of R x C blocks, as stored.
  template <int R, int C, class Buffer>
  __device__ __forceinline__ auto load_scale(const Buffer& buffer) const {
    CudaScales<R, C, typename Buffer::Stored> scales;
    load_scales<Buffer::kLayout>(*this, buffer.scales, scales);
    return scales;
  }

 private:
  // The maximum over each group of kGroup consecutive warps, for blocks taller than a warp.
  template <int kGroup, int kAcross>
  __device__ __forceinline__ void combine_warps(float (&value)[kAcross]) const {
    float* staged = reinterpret_cast<float*>(stage);
    __syncthreads();
#pragma unroll
    for (int across = 0; across < kAcross; ++across)
      staged[(warp * kAcross + across) * kWarpSize + lane] = value[across];
    __syncthreads();
    const int first = warp / kGroup * kGroup;
#pragma unroll
    for (int across = 0; across < kAcross; ++across) {
      float largest = 0;
#pragma unroll
      for (int w = 0; w < kGroup; ++w) {
        largest = fmaxf(largest, staged[((first + w) * kAcross + across) * kWarpSize + lane]);
      }
      value[across] = largest;
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
