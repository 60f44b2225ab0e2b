// The tile of the CPU: a piece of the matrix in cache, and the operations that the generated
// sequences are written in.
//
// Loops run along rows, over local arrays, so that the compiler vectorises them for each
// instruction set. Rows are filled up with zeros to whole blocks; what lies outside the matrix, or
// is another owner's, is never written.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cpu_amax.hpp"
#include "runtime/tile/cpu_blocks.hpp"
#include "runtime/tile/cpu_data.hpp"
#include "runtime/tile/cpu_encode.hpp"
#include "runtime/tile/cpu_place.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kTileRows>
struct CpuTile : CpuPlace<kTileRows> {
  using Place = CpuPlace<kTileRows>;
  using Place::columns, Place::is_first, Place::kColumns, Place::kRows, Place::kWidestBlock,
      Place::matrix, Place::offset, Place::origin, Place::part, Place::rows, Place::width,
      Place::within;
  template <int R, int C>
  using Blocks = CpuBlocks<kRows, kColumns, R, C>;
  template <int R, int C, class Stored>
  using Scales = CpuScales<kRows, kColumns, R, C, Stored>;

  alignas(64) float x[kRows][kColumns];

  CpuTile(Extent matrix, Extent origin, const Part& part, bool is_first)
      : Place(matrix, origin, part, is_first) {
    for (int r = 0; r < rows; ++r) {
      std::memset(x[r] + columns, 0, sizeof(float) * static_cast<size_t>(width - columns));
    }
  }

  // Codes are made on the way to memory: values, scales and the rounding are enough to know them.
  template <class Element, int R, int C, class Stored, class Rounding>
  struct Codes {
    const CpuTile& tile;
    const Scales<R, C, Stored>& scales;
    Rounding rounding;

    NC_MACHINE void row(int r, uint8_t* codes) const {
      if constexpr (C == 1) {
        encode_with(r, scales.multiplier[r / R], codes);
      } else {
        // A multiplier for each element makes one long loop of the many short ones.
        alignas(64) float multiplier[kColumns];
        for (int b = 0; b * C < tile.width; ++b) {
          for (int c = 0; c < C; ++c) multiplier[b * C + c] = scales.multiplier[r / R][b];
        }
        encode_with(r, multiplier, codes);
      }
    }

   private:
    NC_MACHINE void encode_with(int r, const float* multiplier, uint8_t* codes) const {
      const int width = std::min(tile.width, kColumns);  // a bound that the compiler can see
      encode_run<Element>(tile.x[r], multiplier, width, rounding, tile.offset(r), codes);
    }
  };

  // Codes that were read from a buffer.
  struct StoredCodes {
    alignas(64) uint8_t code[kRows][kColumns];
    NC_MACHINE void row(int r, uint8_t* codes) const { std::memcpy(codes, code[r], kColumns); }
  };

  // The largest magnitude of each R x C block. Magnitudes order like their bits, and an
  // integer maximum vectorises.
  template <int R, int C>
  NC_MACHINE Blocks<R, C> block_amax() const {
    Blocks<R, C> amax;
    amax.down = static_cast<int>(ceil_div(rows, R));
    amax.across = static_cast<int>(ceil_div(width, C));
    amax.keeps_nonfinite = part.keeps_nonfinite;
    for (int down = 0; down * R < rows; ++down) {
      uint32_t largest[kColumns / C] = {};
      const int end = std::min((down + 1) * R, rows);
      for (int r = down * R; r < end; ++r) {
        if constexpr (C == 1) {
          keep_larger_magnitudes(x[r], width, part.most(), largest);
        } else {
          for (int across = 0; across * C < width; ++across) {
            const uint32_t of_row = largest_magnitude<C>(&x[r][across * C], part.most());
            largest[across] = std::max(of_row, largest[across]);
          }
        }
      }
      for (int across = 0; across * C < width; ++across) {
        amax.value[down][across] = amax_of(largest[across]);
      }
    }
    if (part.seams != nullptr) share(amax);
    return amax;
  }

  // The largest magnitude of the tile.
  NC_MACHINE float amax() const {
    alignas(64) uint32_t largest[kWidestBlock] = {};
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; c += kWidestBlock) {
        keep_larger_magnitudes(x[r] + c, kWidestBlock, part.most(), largest);
      }
    }
    uint32_t most = 0;
    for (const uint32_t bits : largest) most = std::max(most, bits);
    const float amax = float_of(most);
    return part.keeps_nonfinite ? nan_unless_finite(amax) : amax;
  }

  // The values of all owners in the bytes that they share, after the own ones have been loaded.
  NC_MACHINE void share_values() {
    if (part.seams == nullptr) return;
    for (const int side : {0, 1}) {
      for (int r = 0; r < rows; ++r) {
        const int64_t first = offset(r);
        const int end = within(part.seams->end[side] - first, columns);
        for (int c = within(part.seams->begin[side] - first, columns); c < end; ++c)
          x[r][c] = part.value_of(first + c, x[r][c]);
      }
    }
  }

  // One scale for the whole tile.
  template <class Stored>
  NC_MACHINE auto tensor_scale(const Scale<Stored>& scale) const {
    Scales<kRows, kColumns, Stored> scales;
    scales.multiplier[0][0] = scale.multiplier;
    scales.stored[0][0] = scale.stored;
    return scales;
  }

  template <class Element, int R, int C, class Stored, class Rounding>
  NC_MACHINE Codes<Element, R, C, Stored, Rounding> encode(const Scales<R, C, Stored>& scales,
                                                           const Rounding& rounding) const {
    return {*this, scales, rounding};
  }

  template <class Buffer, class AnyCodes>
  NC_MACHINE void store(const Buffer& data, const AnyCodes& codes) const {
    if constexpr (Buffer::kLayout.transposed) {
      store_code_columns<Buffer::kLayout>(*this, codes, data.bytes);
    } else {
      store_code_rows<Buffer::kLayout>(*this, codes, data.bytes);
    }
  }

  template <class Buffer>
  NC_MACHINE StoredCodes load_codes(const Buffer& data) const {
    StoredCodes codes;
    if constexpr (Buffer::kLayout.transposed) {
      load_code_columns<Buffer::kLayout>(*this, data.bytes, codes.code);
    } else {
      load_code_rows<Buffer::kLayout>(*this, data.bytes, codes.code);
    }
    return codes;
  }

  template <class Buffer, int R, int C, class Stored>
  NC_MACHINE void store_scale(const Buffer& buffer, const Scales<R, C, Stored>& scales) const {
    constexpr Layout kLayout = Buffer::kLayout;
    // The one scale of a tensor comes from the tile that every tensor has: tiles are on many
    // threads.
    if (spans_tensor(kLayout) && !is_first) return;
    this->template for_each_scale<kLayout>([&](int row, int column, int64_t index) {
      if (spans_tensor(kLayout) ||
          part.template touches_block_of<R, C>(matrix, origin.rows + row, origin.columns + column))
        buffer.scales[index] = scales.stored[row / R][column / C];
    });
  }

  // The scales of R x C blocks, as stored.
  template <int R, int C, class Buffer>
  NC_MACHINE auto load_scale(const Buffer& buffer) const {
    constexpr Layout kLayout = Buffer::kLayout;
    Scales<R, C, typename Buffer::Stored> scales;
    this->template for_each_scale<kLayout>([&](int row, int column, int64_t index) {
      scales.stored[row / R][column / C] = buffer.scales[index];
    });
    return scales;
  }

  // value = decode(code) * decoder(stored scale)
  template <class Element, class Decoder, int R, int C, class Stored>
  NC_MACHINE void decode(const StoredCodes& codes, const Scales<R, C, Stored>& scales,
                         const Decoder& decoder) {
    const int width = std::min(columns, kColumns);  // a bound that the compiler can see
    alignas(64) float multiplier[kColumns];         // for each element, as in Codes
    for (int r = 0; r < rows; ++r) {
      for (int b = 0; r % R == 0 && b * C < width; ++b)
        std::fill_n(multiplier + b * C, C, decoder(scales.stored[r / R][b]));
      const uint8_t* __restrict code = codes.code[r];
      float* __restrict value = x[r];
      for (int c = 0; c < width; ++c) value[c] = Element::decode(code[c]) * multiplier[c];
    }
  }

 private:
  // What the amaxes of all owners are, of the blocks that they share.
  template <int R, int C>
  NC_MACHINE void share(Blocks<R, C>& amax) const {
    part.template for_each_seam<R, C>([&](const nc_seam& seam) {
      for (int down = 0; down < amax.down; ++down) {
        for (int across = 0; across < amax.across; ++across)
          part.share_amax(seam, origin.rows / R + down, origin.columns / C + across,
                          amax.value[down][across]);
      }
    });
  }
};

}  // namespace narrowcast::inline NC_VARIANT
