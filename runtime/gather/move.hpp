// Packing and unpacking a buffer as one kind of work: a matrix of words is written, each of them
// from a place of the source, or zero.
#pragma once

#include <cstdint>

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int64_t kOnePiece = INT64_MAX;

// Along one dimension of the target: where its places have their source.
struct Axis {
  int64_t used;         // places that have one; those beyond are zeros
  int64_t repeat;       // neighbours that have the same
  int64_t piece;        // source places to a piece
  int64_t piece_bytes;  // from one piece to the next
  int64_t place_bytes;  // from one source place to the next

  // The divisions are left out where they can be: on the GPU they would cost as much as the rest.
  NC_EVERYWHERE int64_t offset(int64_t at) const {
    const int64_t index = repeat == 1 ? at : floor_div(at, repeat);
    if (index < piece) return index * place_bytes;
    const int64_t number = floor_div(index, piece);
    return number * piece_bytes + (index - number * piece) * place_bytes;
  }
};

struct Move {
  const uint8_t* from;
  uint8_t* to;
  int64_t words;    // of the target; its last row may be cut short
  int64_t columns;  // words of a row of the target
  Axis row, column;
  int64_t first_tile;  // as in nc_tensor
  int32_t word;        // bytes: 1, 2, 4, 8 or 16
  int32_t reserved;
};

// The widest word that addresses and sizes allow. `move` is in entries of `word` bytes.
inline Move widened(Move move) {
  constexpr uint64_t kWidest = 16;
  Axis& columns = move.column;
  if (columns.repeat != 1 || columns.place_bytes != move.word) return move;
  const bool one_piece = columns.piece == kOnePiece;
  const int64_t counted =
      move.words | move.columns | columns.used | (one_piece ? 0 : columns.piece);
  const uint64_t low_bits = kWidest | reinterpret_cast<uint64_t>(move.from) |
                            reinterpret_cast<uint64_t>(move.to) |
                            static_cast<uint64_t>(counted * move.word | columns.piece_bytes |
                                                  move.row.piece_bytes | move.row.place_bytes);
  const int64_t word = static_cast<int64_t>(low_bits & (~low_bits + 1));
  const int64_t entry = move.word;
  for (int64_t* count : {&move.words, &move.columns, &columns.used}) *count = *count * entry / word;
  if (!one_piece) columns.piece = columns.piece * entry / word;
  columns.place_bytes = word;
  move.word = static_cast<int32_t>(word);
  return move;
}

}  // namespace narrowcast::inline NC_VARIANT
