// The tile of the GPU where codes are there already: the operations that the generated sequences
// decode with, and derive one usage from the other with.
#pragma once

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_code_columns.cuh"
#include "runtime/tile/cuda_code_rows.cuh"
#include "runtime/tile/cuda_code_scales.cuh"
#include "runtime/tile/cuda_decode.cuh"
#include "runtime/tile/cuda_memory.cuh"

namespace narrowcast::inline NC_VARIANT {

// `Value`: what is decoded to.
template <int kTileRows, int kRowsOfThread, int kColumnsOfThread, bool kInside, class Value = float>
struct CodeTile : CodePlace<kTileRows, kRowsOfThread, kColumnsOfThread, kInside> {
  using Place = CodePlace<kTileRows, kRowsOfThread, kColumnsOfThread, kInside>;
  using Codes = PlacedCodes<Place>;
  using Place::kAcross, Place::kColumns, Place::kDown, Place::kFull, Place::kRows;

  // Codes that were stored in a byte each, which may hold other bits, too.
  struct ByteCodes : Codes {};

  uint8_t* stage;        // serves one exchange between threads after the other
  uint8_t* scale_stage;  // where scales meet
  uint32_t words[kDown][kAcross * sizeof(Value) / 4];  // a row's values, as memory has them

  __device__ __forceinline__ CodeTile(Extent matrix, Extent origin, uint8_t* stage,
                                      uint8_t* scale_stage)
      : Place(matrix, origin), stage(stage), scale_stage(scale_stage) {}

  template <int R, int C, class Buffer>
  __device__ __forceinline__ auto load_scale(const Buffer& buffer) const {
    using Stored = typename Buffer::Stored;
    if constexpr (kFull && scales_meet<Buffer::kLayout, Place>()) {
      MeetingScales<Buffer::kLayout, Place, R, C, Stored> scales;
      scales.load(*this, in_global_memory(buffer.scales));
      return scales;
    } else {
      PlacedScales<Place, R, C, Stored> scales;
      load_code_scales<Buffer::kLayout, Place, R, C>(*this, in_global_memory(buffer.scales),
                                                     scales);
      return scales;
    }
  }

  template <class Buffer, class Scales>
  __device__ __forceinline__ void store_scale(const Buffer& buffer, const Scales& scales) const {
    store_code_scales<Buffer::kLayout, Place>(*this, in_global_memory(buffer.scales),
                                              settled(scales), stage);
  }

  template <class Buffer>
  __device__ __forceinline__ auto load_codes(const Buffer& data) const {
    std::conditional_t<Buffer::kLayout.element_bits == 8, ByteCodes, Codes> codes;
    if constexpr (Buffer::kLayout.transposed) {
      load_code_columns<Buffer::kLayout, Place>(*this, in_global_memory(data.bytes), stage, codes);
    } else {
      load_code_rows<Buffer::kLayout, Place>(*this, in_global_memory(data.bytes), codes);
    }
    return codes;
  }

  template <class Buffer>
  __device__ __forceinline__ void store(const Buffer& data, const Codes& codes) const {
    if constexpr (Buffer::kLayout.transposed) {
      store_code_columns<Buffer::kLayout, Place>(*this, in_global_memory(data.bytes), stage, codes);
    } else {
      store_code_rows<Buffer::kLayout, Place>(*this, in_global_memory(data.bytes), codes);
    }
  }

  // value = decode(code) * decoder(stored scale)
  template <class Element, class LoadedCodes, class Scales, class Decoder>
  __device__ __forceinline__ void decode(const LoadedCodes& codes, const Scales& loaded,
                                         const Decoder& decoder) {
    constexpr bool kHasOtherBits = Element::kBits < 8 && std::is_same_v<LoadedCodes, ByteCodes>;
    constexpr uint32_t kOwn = kHasOtherBits ? in_each_byte((1u << Element::kBits) - 1) : ~0u;
    const auto multipliers = decoded(loaded, decoder);
    using Multipliers = std::remove_const_t<decltype(multipliers)>;
#pragma unroll
    for (int r = 0; r < kDown; ++r) {
#pragma unroll
      for (int four = 0; four < kAcross / 4; ++four) {
        float of_four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          of_four[i] =
              multipliers.stored[r / Multipliers::kRows][(4 * four + i) / Multipliers::kColumns];
        decode4<Element, Value>(codes.row[r][four] & kOwn, of_four,
                                words[r] + four * sizeof(Value));
      }
    }
  }

  __device__ __forceinline__ void store_value(void* value) const {
    constexpr int kOf16Bytes = 16 / sizeof(Value);
    Value* target = in_global_memory(static_cast<Value*>(value)) +
                    this->row() * this->matrix.columns + this->column();
#pragma unroll
    for (int r = 0; r < kDown; ++r, target += this->matrix.columns) {
      if constexpr (kFull) {
#pragma unroll
        for (int c = 0; c < kAcross; c += kOf16Bytes)
          store_16_bytes(target + c, words[r] + c / kOf16Bytes * 4);
      } else {
#pragma unroll
        for (int c = 0; c < kAcross; ++c) {
          if (this->inside(this->row() + r, this->column() + c))
            target[c] = reinterpret_cast<const Value*>(words[r])[c];
        }
      }
    }
  }

 private:
  template <int R, int C, class Stored>
  __device__ __forceinline__ static PlacedScales<Place, R, C, Stored> settled(
      const PlacedScales<Place, R, C, Stored>& scales) {
    return scales;
  }
  template <Layout kLayout, int R, int C, class Stored>
  __device__ __forceinline__ PlacedScales<Place, R, C, Stored> settled(
      const MeetingScales<kLayout, Place, R, C, Stored>& scales) const {
    return scales.settle(*this, scale_stage);
  }

  // The multipliers of decoding.
  template <int R, int C, class Stored, class Decoder>
  __device__ __forceinline__ static PlacedScales<Place, R, C, float> decoded(
      const PlacedScales<Place, R, C, Stored>& scales, const Decoder& decoder) {
    using Multipliers = PlacedScales<Place, R, C, float>;
    Multipliers multipliers;
#pragma unroll
    for (int down = 0; down < Multipliers::kDown; ++down) {
#pragma unroll
      for (int across = 0; across < Multipliers::kAcross; ++across)
        multipliers.stored[down][across] = decoder(scales.stored[down][across]);
    }
    return multipliers;
  }
  template <Layout kLayout, int R, int C, class Stored, class Decoder>
  __device__ __forceinline__ PlacedScales<Place, R, C, float> decoded(
      const MeetingScales<kLayout, Place, R, C, Stored>& scales, const Decoder& decoder) const {
    if constexpr (kDecodesCheaply<Decoder>) {
      return decoded(settled(scales), decoder);
    } else {
      return scales.settle_decoded(*this, scale_stage, decoder);
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
