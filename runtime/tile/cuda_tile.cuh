// The tile of the GPU's casts: a thread block's piece of the matrix in registers, and the
// operations that the generated sequences make codes with. kWarps warps hold 8 * kWarps rows x 128
// columns, 8 rows x 4 columns a thread. What lies outside the matrix, or is another owner's, counts
// as zero and is never written. Codes along columns and scales go to the tile's strip, which is
// written after all its tiles have been cast, and a barrier.
#pragma once

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_amax.cuh"
#include "runtime/tile/cuda_columns.cuh"
#include "runtime/tile/cuda_data.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_lines.cuh"
#include "runtime/tile/cuda_low_end.cuh"
#include "runtime/tile/cuda_memory.cuh"
#include "runtime/tile/cuda_scale.cuh"
#include "runtime/tile/cuda_strip.cuh"
#include "runtime/tile/cuda_values.cuh"

namespace narrowcast::inline NC_VARIANT {

template <class Strip, Owned kOwned, bool kKeepsNonfinite>
struct CudaTile : CudaValues<Strip::kWarps, kOwned> {
  using Values = CudaValues<Strip::kWarps, kOwned>;
  using Place = typename Values::Place;
  using Place::kColumns, Place::kFull, Place::kRows, Place::matrix, Place::offset, Values::x;

  Strip& strip;
  int step;  // which of the strip's tiles this is

  __device__ __forceinline__ CudaTile(const Place& place, Strip& strip, int step)
      : Values(place), strip(strip), step(step) {}

  // The largest magnitude of each R x C block: in the thread, then across lanes, then across warps.
  // A NaN is dropped, as long as one of the two is none, or kept.
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
        of_block = first ? fabsf(x[r][c]) : larger_magnitude<kKeepsNonfinite>(of_block, x[r][c]);
      }
    }
    CudaAmax<EvenShare<R, C>, Place, kKeepsNonfinite> amax(*this, strip.maxima, strip.multipliers,
                                                           largest);
    if constexpr (!kFull) amax.share();
    return amax;
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
    constexpr bool kIsNearest = std::is_same_v<Rounding, Nearest>;
    if constexpr (IsLowEnd<Element> && kIsNearest) {
      // Two powers of two may be multiplied first: no multiplier is below 2^-127, so that is exact,
      // and what is lost of subnormal floats has the code 0 in either order.
      return low_end_codes<Element>([&](int r, int c) {
        constexpr float kFit = kToLowEnd<Element>;
        return Strip::kPowerOfTwo ? x[r][c] * (scales.multiplier_of(r, c) * kFit)
                                  : scaled(r, c) * kFit;
      });
    } else if constexpr (HasLines<Element> && Strip::kElementBits == Element::kBits && kIsNearest) {
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
      stage_codes<Buffer::kLayout>(*this, strip.template codes<Buffer::kUsage>(), step, codes);
      if constexpr (Strip::kTakeTurns && Buffer::kUsage == Usage::kRowwise) {
        __syncthreads();
        write_codes<Buffer::kLayout, 1>(*this, bytes, strip.template codes<Buffer::kUsage>(), step);
        __syncthreads();
      }
    } else {
      store_column_bytes<Buffer::kLayout>(*this, bytes, codes);
    }
  }

  // The one scale of a tensor comes from the first tile, which every tensor has.
  template <class Buffer, class Scales>
  __device__ __forceinline__ void store_scale(const Buffer& buffer, const Scales& scales) const {
    if constexpr (!spans_tensor(Buffer::kLayout)) {
      stage_scales(*this, strip.template scales<Buffer::kUsage>(), step, scales);
    } else if (this->is_first && threadIdx.x == 0) {
      *in_global_memory(buffer.scales) = scales.stored[0][0];
    }
  }

  // What the strip holds of kTiles tiles, of which this is the first.
  template <int kTiles, class Buffers>
  __device__ __forceinline__ void write_strip(const Buffers& out) const {
    if (out.rowwise) write_usage<kTiles>(out.rowwise_data, out.rowwise_scale);
    if (out.columnwise) write_usage<kTiles>(out.columnwise_data, out.columnwise_scale);
  }

 private:
  template <int kTiles, class Data, class Scale>
  __device__ __forceinline__ void write_usage(const Data& data, const Scale& scale) const {
    constexpr bool kIsWritten = Strip::kTakeTurns && Data::kUsage == Usage::kRowwise;
    if constexpr (Data::kLayout.transposed && !kIsWritten && kOwned != Owned::kSome)
      write_codes<Data::kLayout, kTiles>(*this, in_global_memory(data.bytes),
                                         strip.template codes<Data::kUsage>(), step);
    if constexpr (!spans_tensor(Scale::kLayout)) {
      auto& stage = strip.template scales<Scale::kUsage>();
      using Stage = std::remove_reference_t<decltype(stage)>;
      store_staged_scales<Scale::kLayout, Stage::kBlockRows, Stage::kBlockColumns, kTiles>(
          *this, in_global_memory(scale.scales), stage.of_row(step * Place::kRows));
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
