// Codes between a tile of the CPU and a data buffer, whose rows are the matrix's rows or, where it
// is stored transposed, its columns.
#pragma once

#include <algorithm>
#include <cstring>

#include "runtime/geometry/geometry.hpp"
#include "runtime/tile/pack.hpp"
#include "runtime/tile/stream.hpp"

namespace narrowcast::inline NC_VARIANT {

// From `begin` to before `end`, of a tile's row or column.
struct Run {
  int begin, end;
  constexpr bool operator==(const Run&) const = default;
};

// The bytes that hold a run's codes: whoever has an element of a byte writes all of it.
template <int kBits>
NC_EVERYWHERE Run bytes_of(Run run) {
  if (run.begin >= run.end) return {0, 0};
  return {run.begin * kBits / 8, (run.end * kBits + 7) / 8};
}

// Where the run of a tile's row begins, or that of its column in a buffer stored transposed.
template <Layout kLayout, class Tile>
NC_MACHINE int64_t run_of_row(const Tile& tile, int r) {
  return element_position(kLayout, tile.matrix, tile.origin.rows + r, tile.origin.columns).byte;
}
template <Layout kLayout, class Tile>
NC_MACHINE int64_t run_of_column(const Tile& tile, int c) {
  return element_position(kLayout, tile.matrix, tile.origin.rows, tile.origin.columns + c).byte;
}

// Bytes of a run in cache, which is aligned as streams ask.
NC_MACHINE void write_run(const uint8_t* bytes, Run run, uint8_t* target) {
  if (run.begin == 0) return stream_bytes(bytes, run.end, target);
  std::memcpy(target + run.begin, bytes + run.begin, static_cast<size_t>(run.end - run.begin));
}

template <Layout kLayout, class Tile, class Codes>
NC_MACHINE void store_code_rows(const Tile& tile, const Codes& codes, uint8_t* bytes) {
  for (int r = 0; r < tile.rows; ++r) {
    alignas(64) uint8_t run[Tile::kColumns];
    constexpr int kBits = kLayout.element_bits;
    const Run own = bytes_of<kBits>(tile.own_columns(r));
    if (own.begin >= own.end) continue;
    codes.row(r, run);
    uint8_t* target = bytes + run_of_row<kLayout>(tile, r);
    if constexpr (kBits == 8) {
      write_run(run, own, target);
    } else {
      alignas(64) uint8_t packed[Tile::kColumns];
      pack<kBits>(run, tile.columns, packed);
      write_run(packed, own, target);
    }
  }
}

template <Layout kLayout, class Tile, class Codes>
NC_MACHINE void store_code_columns(const Tile& tile, const Codes& codes, uint8_t* bytes) {
  const Run all_bytes = bytes_of<kLayout.element_bits>({0, tile.rows});
  alignas(64) uint8_t all[Tile::kRows][Tile::kColumns];
  for (int r = 0; r < tile.rows; ++r) codes.row(r, all[r]);
  for (int c = 0; c < tile.columns; ++c) {
    uint8_t run[Tile::kRows];
    for (int r = 0; r < tile.rows; ++r) run[r] = all[r][c];
    uint8_t* target = bytes + run_of_column<kLayout>(tile, c);
    const Run own = bytes_of<kLayout.element_bits>(tile.own_rows(c));
    if (own == all_bytes) {
      pack<kLayout.element_bits>(run, tile.rows, target);
    } else {
      uint8_t packed[Tile::kRows];
      pack<kLayout.element_bits>(run, tile.rows, packed);
      std::memcpy(target + own.begin, packed + own.begin, static_cast<size_t>(own.end - own.begin));
    }
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
