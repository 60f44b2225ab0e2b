// Moves on the CPU: runs of bytes, on the caller's threads.
#pragma once

#include <cstring>
#include <vector>

#include "runtime/gather/wires.hpp"
#include "runtime/launch/find_tensor.hpp"

namespace narrowcast::inline NC_VARIANT {

// Returns the bytes that the row has of the source.
inline int64_t move_row(const Move& move, int64_t row, uint8_t* target) {
  const uint8_t* source = move.from + move.row.offset(row);
  const Axis& columns = move.column;
  const bool runs = columns.repeat == 1 && columns.place_bytes == move.word;
  const int64_t longest = runs ? columns.piece : 1;
  for (int64_t at = 0; at < columns.used; at += longest) {
    const int64_t words = std::min(longest, columns.used - at);
    std::memcpy(target + at * move.word, source + columns.offset(at),
                static_cast<size_t>(words * move.word));
    if (columns.used - at <= longest) break;  // and nothing overflows
  }
  return columns.used * move.word;
}

// On the CPU a tile is some rows of the target.
struct RowTiles {
  static constexpr int64_t kBytes = 1 << 16;  // of a tile, or one row: they fit into a cache

  static int64_t rows(const Move& move) { return ceil_div(move.words, move.columns); }
  static int64_t rows_of_tile(const Move& move) {
    return std::max<int64_t>(1, kBytes / (move.columns * move.word));
  }
  static int64_t count(const Move& move) { return ceil_div(rows(move), rows_of_tile(move)); }

  static void run(const Move& move, int64_t tile) {
    const int64_t first = tile * rows_of_tile(move);
    const int64_t end = std::min(rows(move), first + rows_of_tile(move));
    const int64_t bytes = move.words * move.word, row_bytes = move.columns * move.word;
    for (int64_t row = first; row < end; ++row) {
      uint8_t* target = move.to + row * row_bytes;
      const int64_t room = std::min(row_bytes, bytes - row * row_bytes);
      const int64_t moved = row < move.row.used ? move_row(move, row, target) : 0;
      std::memset(target + moved, 0, static_cast<size_t>(room - moved));
    }
  }
};

// nc_machine.pack and unpack.
template <class Gather, class Wire>
const char* cpu_transfer(const nc_transfer* transfer) {
  std::vector<Move> moves;
  int64_t tiles = 0;
  for_each_move<Gather, Wire>(*transfer, [&](Move move) {
    move.first_tile = tiles;
    tiles += RowTiles::count(move);
    moves.push_back(move);
  });
  constexpr auto kBody = [](void* context, int64_t begin, int64_t end) {
    const auto& all = *static_cast<const std::vector<Move>*>(context);
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t index = find_by_tile(all.data(), static_cast<int64_t>(all.size()), tile);
      const Move& move = all[static_cast<size_t>(index)];
      RowTiles::run(move, tile - move.first_tile);
    }
  };
  if (transfer->parallel_for == nullptr) {
    kBody(&moves, 0, tiles);
  } else if (tiles > 0) {
    transfer->parallel_for(tiles, kBody, &moves);
  }
  return nullptr;
}

}  // namespace narrowcast::inline NC_VARIANT
