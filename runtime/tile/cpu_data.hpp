// Codes between a tile of the CPU and a data buffer, whose rows are the matrix's rows or, where it
// is stored transposed, its columns.
#pragma once

#include <algorithm>

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/pack.hpp"
#include "runtime/tile/stream.hpp"

namespace narrowcast::inline NC_VARIANT {

// Where the run of a tile's row begins, or that of its column in a buffer stored transposed.
template <Layout kLayout, class Tile>
NC_MACHINE int64_t run_of_row(const Tile& tile, int r) {
  return element_position(kLayout, tile.matrix, tile.origin.rows + r, tile.origin.columns).byte;
}
template <Layout kLayout, class Tile>
NC_MACHINE int64_t run_of_column(const Tile& tile, int c) {
  return element_position(kLayout, tile.matrix, tile.origin.rows, tile.origin.columns + c).byte;
}

template <Layout kLayout, class Tile, class Codes>
NC_MACHINE void store_code_rows(const Tile& tile, const Codes& codes, uint8_t* bytes) {
  for (int r = 0; r < tile.rows; ++r) {
    alignas(64) uint8_t run[Tile::kColumns];
    codes.row(r, run);
    uint8_t* target = bytes + run_of_row<kLayout>(tile, r);
    if constexpr (kLayout.element_bits == 8) {
      stream_bytes(run, tile.columns, target);
    } else {
      alignas(64) uint8_t packed[Tile::kColumns];
      pack<kLayout.element_bits>(run, tile.columns, packed);
      stream_bytes(packed, tile.columns * kLayout.element_bits / 8, target);
    }
  }
}

template <Layout kLayout, class Tile, class Codes>
NC_MACHINE void store_code_columns(const Tile& tile, const Codes& codes, uint8_t* bytes) {
  alignas(64) uint8_t all[Tile::kRows][Tile::kColumns];
  for (int r = 0; r < tile.rows; ++r) codes.row(r, all[r]);
  for (int c = 0; c < tile.columns; ++c) {
    uint8_t run[Tile::kRows];
    for (int r = 0; r < tile.rows; ++r) run[r] = all[r][c];
    pack<kLayout.element_bits>(run, tile.rows, bytes + run_of_column<kLayout>(tile, c));
  }
}

template <Layout kLayout, class Tile>
NC_MACHINE void load_code_rows(const Tile& tile, const uint8_t* bytes,
                               uint8_t (&code)[Tile::kRows][Tile::kColumns]) {
  for (int r = 0; r < tile.rows; ++r)
    unpack<kLayout.element_bits>(bytes + run_of_row<kLayout>(tile, r), tile.columns, code[r]);
}

template <Layout kLayout, class Tile>
NC_MACHINE void load_code_columns(const Tile& tile, const uint8_t* bytes,
                                  uint8_t (&code)[Tile::kRows][Tile::kColumns]) {
  const int height = std::min(tile.rows, Tile::kRows);  // a bound that the compiler can see
  for (int c = 0; c < tile.columns; ++c) {
    uint8_t run[Tile::kRows];
    unpack<kLayout.element_bits>(bytes + run_of_column<kLayout>(tile, c), height, run);
    for (int r = 0; r < height; ++r) code[r][c] = run[r];
  }
}

}  // namespace narrowcast::inline NC_VARIANT
