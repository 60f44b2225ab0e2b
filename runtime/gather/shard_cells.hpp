// Which bytes of a stored buffer are whose, when ranks own runs of the flattened matrix. A buffer
// is a matrix of cells, bytes of data or stored scales without padding, and a cell is the rank's
// that owns the first element, along the matrix's rows, whose bits it holds. That rank has the cell
// in full: a cast of flat shards writes whole bytes, and all scales of the blocks that it touches.
#pragma once

#include <algorithm>

#include "runtime/gather/flat_transfer.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::inline NC_VARIANT {

struct Cells {
  int64_t lines, width;             // stored rows, and cells of each
  int64_t pitch;                    // cells from one line to the next
  int64_t bytes;                    // of a cell
  int64_t columns;                  // of the matrix
  int64_t unit_rows, unit_columns;  // elements of the matrix to a unit: an element, or a scale
  int64_t unit_bits;                // units along a line fill cells, of 8 bits as it were
  bool transposed;                  // lines are the matrix's columns

  // Cells that begin within the first `units` of a line; the one that these end in is theirs.
  constexpr int64_t cells_of(int64_t units) const { return ceil_div(units * unit_bits, 8); }

  // Cells ahead of an element, or of the matrix's end.
  constexpr Front front(int64_t element) const {
    const int64_t band = unit_rows * columns;  // elements of a row of units
    if (band == 0) return {0, 0, 0, 0};
    const int64_t units = floor_div(element, band), rest = element - units * band;
    if (!transposed) {
      const int64_t across = ceil_div(std::min(rest, columns), unit_columns);
      return {units, width, cells_of(across), 0};
    }
    // The unit that the element is in, or behind, begins ahead of it on the first lines alone.
    const int64_t turn = std::min(ceil_div(rest, unit_columns), lines);
    return {turn, cells_of(units + 1), cells_of(units), cells_of(units)};
  }
};

constexpr Cells data_cells(const Layout& layout, Extent matrix) {
  const Extent shape = data_shape(layout, matrix);
  return {shape.rows, shape.columns,       shape.columns,         1, matrix.columns, 1,
          1,          layout.element_bits, layout.transposed != 0};
}

// Of a layout whose blocks do not span the tensor.
constexpr Cells scale_cells(const Layout& layout, Extent matrix) {
  const Extent used = scale_extent(layout, matrix);
  return {used.rows,
          used.columns,
          scale_shape(layout, matrix).columns,
          layout.scale_bytes,
          matrix.columns,
          layout.scale_per_rows,
          layout.scale_per_columns,
          8,
          layout.scale_transposed != 0};
}

// Ahead of the front on one line, and on all lines above one.
NC_EVERYWHERE constexpr int64_t on_line(const Front& front, int64_t line) {
  return line < front.turn ? front.before : line == front.turn ? front.at : front.after;
}
NC_EVERYWHERE constexpr int64_t above_line(const Front& front, int64_t line) {
  const int64_t before = line < front.turn ? line : front.turn;
  const int64_t through = line < front.turn + 1 ? line : front.turn + 1;
  return before * front.before + (through - before) * front.at + (line - through) * front.after;
}

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
NC_EVERYWHERE FlatCopy flat_copy(const FlatPiece& piece, int64_t line, int64_t chunk,
                                 uint8_t* payload, bool unpack) {
  const FlatRun run = run_of(piece, line);
  uint8_t* const stored = piece.buffer + run.buffer;
  uint8_t* const packed = payload + run.payload;
  uint8_t* const to = unpack ? stored : packed;
  const int64_t ahead = static_cast<int64_t>(reinterpret_cast<uint64_t>(to) % kFlatWord);
  const int64_t first = chunk * kFlatChunk - ahead, last = first + kFlatChunk;
  const int64_t begin = first < 0 ? 0 : first, end = last < run.bytes ? last : run.bytes;
  return {(unpack ? packed : stored) + begin, to + begin, end - begin};
}

}  // namespace narrowcast::inline NC_VARIANT
