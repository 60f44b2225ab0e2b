// What a launch of a packed gather does, in parts: the lines of pieces as runs of bytes, and tiles
// as a chunk of one line, or as some short lines.
#pragma once

#include "runtime/gather/shard_cells.hpp"

namespace narrowcast::inline NC_VARIANT {

// One line of a piece: where its bytes begin in the buffer and in the payload.
struct FlatRun {
  int64_t buffer, payload, bytes;
};
NC_EVERYWHERE constexpr FlatRun run_of(const FlatPiece& piece, int64_t line) {
  const int64_t from = on_line(piece.begin, line);
  return {line * piece.line_bytes + from,
          piece.payload + above_line(piece.end, line) - above_line(piece.begin, line),
          on_line(piece.end, line) - from};
}

// The lines and the chunk of a tile, counted from the piece's first. Chunks end where the target's
// addresses are multiples of kFlatWord, so that a line of n bytes has part in those of n plus
// kFlatWord - 1.
inline constexpr int64_t kFlatWord = 16, kFlatChunk = 16 << 10;
// Of the GPU: to a tile, and to a line at least.
inline constexpr int32_t kFlatThreads = 256, kFlatFewestThreads = 16;
struct FlatTile {
  int64_t line, end, chunk;
};
NC_EVERYWHERE constexpr FlatTile flat_tile(const FlatPiece& piece, int64_t index) {
  // In 32 bits, because a 64-bit division costs the GPU more than the rest of a tile's numbers.
  const uint32_t at = static_cast<uint32_t>(index - piece.first_tile);
  if (piece.chunks == 1) {
    const int64_t line = int64_t{at} * piece.lines_of_tile, end = line + piece.lines_of_tile;
    return {piece.first + line, piece.first + (end < piece.lines ? end : piece.lines), 0};
  }
  const uint32_t line = at / static_cast<uint32_t>(piece.chunks);
  return {piece.first + line, piece.first + line + 1,
          at - line * static_cast<uint32_t>(piece.chunks)};
}

// A copy of bytes, and the part of it that is in a chunk: empty, if `bytes` is not positive.
struct FlatCopy {
  const uint8_t* from;
  uint8_t* to;
  int64_t bytes;
};
NC_EVERYWHERE FlatCopy flat_copy(const FlatTransfer& transfer, const FlatPiece& piece, int64_t line,
                                 int64_t chunk) {
  const bool unpack = transfer.unpack != 0;
  const FlatRun run = run_of(piece, line);
  uint8_t* const stored = piece.buffer + transfer.moved + run.buffer;
  uint8_t* const packed = transfer.payload + run.payload;
  uint8_t* const to = unpack ? stored : packed;
  const int64_t ahead = static_cast<int64_t>(reinterpret_cast<uint64_t>(to) % kFlatWord);
  const int64_t first = chunk * kFlatChunk - ahead, last = first + kFlatChunk;
  const int64_t begin = first < 0 ? 0 : first, end = last < run.bytes ? last : run.bytes;
  return {(unpack ? packed : stored) + begin, to + begin, end - begin};
}

}  // namespace narrowcast::inline NC_VARIANT
