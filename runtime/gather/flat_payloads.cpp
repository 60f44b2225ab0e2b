#include "runtime/gather/flat_payloads.hpp"

#include <algorithm>

#include "runtime/gather/flat_tiles.hpp"

namespace narrowcast {
namespace {

constexpr int64_t kPayloadStep = 256;  // payloads begin where every wide access may

Front in_bytes(const Front& front, int64_t cell) {
  return {front.turn, front.before * cell, front.at * cell, front.after * cell};
}

// A piece whose place in the payload, and whose tiles, are still to come.
FlatPiece piece_of(const Cells& cells, int64_t begin, int64_t end) {
  FlatPiece piece{};
  piece.line_bytes = cells.pitch * cells.bytes;
  piece.begin = in_bytes(cells.front(begin), cells.bytes);
  piece.end = in_bytes(cells.front(end), cells.bytes);
  piece.lines = cells.lines;
  if (!cells.transposed) {
    piece.first = piece.begin.turn;
    piece.lines = std::min(cells.lines, piece.end.turn + 1) - piece.first;
  }
  return piece;
}

int64_t bytes_of(const FlatPiece& piece) {
  const int64_t end = piece.first + piece.lines;
  return above_line(piece.end, end) - above_line(piece.begin, end);
}

// The same bytes as one line, where they follow each other in the buffer.
void join_lines(FlatPiece& piece, const Cells& cells) {
  const bool all = bytes_of(piece) == cells.lines * cells.width * cells.bytes;
  if (cells.pitch != cells.width || (cells.transposed && !all)) return;
  const int64_t bytes = bytes_of(piece);
  const int64_t from = cells.transposed ? 0 : piece.begin.turn * piece.line_bytes + piece.begin.at;
  piece.begin = {0, 0, from, 0};
  piece.end = {0, 0, from + bytes, 0};
  piece.first = piece.line_bytes = 0;
  piece.lines = 1;
}

// Lines' lengths change behind the fronts' turns alone.
int64_t longest_line(const FlatPiece& piece) {
  int64_t longest = 0;
  for (const int64_t turn : {piece.first, piece.begin.turn, piece.end.turn}) {
    for (const int64_t line : {turn, turn + 1}) {
      if (line >= piece.first && line < piece.first + piece.lines)
        longest = std::max(longest, run_of(piece, line).bytes);
    }
  }
  return longest;
}

int64_t tiles_of(const FlatPiece& piece) {
  return ceil_div(piece.lines, piece.lines_of_tile) * piece.chunks;
}

// A tile is a chunk of a line, or as many short lines; a thread moves four words or so, and very
// short lines are not so many that one tile takes long.
void divide(FlatPiece& piece) {
  constexpr int64_t kBytesOfThread = 4 * kFlatWord, kRounds = 8;
  const int64_t longest = longest_line(piece);
  piece.chunks = ceil_div(longest + kFlatWord - 1, kFlatChunk);
  piece.threads = kFlatThreads;
  piece.lines_of_tile = 1;
  if (piece.chunks > 1) return;
  while (piece.threads > kFlatFewestThreads && piece.threads / 2 * kBytesOfThread >= longest)
    piece.threads /= 2;
  const int64_t groups = kFlatThreads / piece.threads;
  const int64_t rounds = std::clamp<int64_t>(kFlatChunk / (groups * longest), 1, kRounds);
  piece.lines_of_tile = static_cast<int32_t>(groups * rounds);
}

// Calls act(cells, buffer) for each buffer of a matrix that moves.
template <class Act>
void for_each_buffer(const FlatMatrix& one, const Act& act) {
  const nc_format& format = *one.format;
  for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
    const bool columnwise = b == NC_COLUMNWISE_DATA || b == NC_COLUMNWISE_SCALE;
    const bool data = b == NC_ROWWISE_DATA || b == NC_COLUMNWISE_DATA;
    const Layout& layout = columnwise ? format.columnwise : format.rowwise;
    if (one.buffer[static_cast<size_t>(b)] == nullptr) continue;
    if (columnwise && format.columnwise_derived != 0) continue;
    if (!data && spans_tensor(layout)) continue;
    act(data ? data_cells(layout, one.matrix) : scale_cells(layout, one.matrix),
        one.buffer[static_cast<size_t>(b)]);
  }
}

void add(FlatTable& table, FlatPiece piece) {
  const int64_t tiles = tiles_of(piece);
  piece.first_tile = table.tiles();
  table.piece_of_tile.insert(table.piece_of_tile.end(), static_cast<size_t>(tiles),
                             static_cast<int32_t>(table.pieces.size()));
  table.pieces.push_back(piece);
}

// The pieces of what a rank owns of matrices. Their places in the payload are still to come.
std::vector<FlatPiece> pieces_of(std::span<const FlatMatrix> matrices,
                                 std::span<const std::pair<int64_t, int64_t>> owned) {
  std::vector<FlatPiece> pieces;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t begin = owned[i].first, end = owned[i].second;
    if (begin >= end) continue;
    for_each_buffer(matrices[i], [&](const Cells& cells, uint8_t* buffer) {
      FlatPiece piece = piece_of(cells, begin, end);
      if (bytes_of(piece) == 0) return;
      join_lines(piece, cells);
      divide(piece);
      piece.buffer = buffer;
      pieces.push_back(piece);
    });
  }
  return pieces;
}

}  // namespace

FlatPayloads::FlatPayloads(std::span<const FlatMatrix> matrices, const FlatRanges& ranges,
                           int64_t least_bytes)
    : bytes_(least_bytes) {
  for (const auto& of_rank : ranges) {
    int64_t used = 0;
    for (FlatPiece& piece : pieces_.emplace_back(pieces_of(matrices, of_rank))) {
      // Buffers are aligned as payloads are: so that words of both have the same places.
      const int64_t ahead = run_of(piece, piece.first).buffer % kFlatWord;
      piece.payload = round_up(used - std::min(used, ahead), kFlatWord) + ahead;
      used = piece.payload + bytes_of(piece);
    }
    used_.push_back(used);
    bytes_ = std::max(bytes_, round_up(used, kPayloadStep));
  }
}

FlatTable FlatPayloads::packing(size_t rank) const {
  FlatTable table;
  for (const FlatPiece& piece : pieces_[rank]) add(table, piece);
  return table;
}

FlatTable FlatPayloads::packing(size_t rank, std::span<const FlatMatrix> parts,
                                std::span<const int64_t> first_rows,
                                std::span<const std::pair<int64_t, int64_t>> owned) const {
  std::vector<std::pair<int64_t, int64_t>> here(owned.begin(), owned.end());
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t ahead = first_rows[i] * parts[i].matrix.columns;
    here[i] = {here[i].first - ahead, here[i].second - ahead};
  }
  FlatTable table;
  for (FlatPiece& piece : pieces_of(parts, here)) {
    piece.payload = pieces_[rank][table.pieces.size()].payload;
    add(table, piece);
  }
  return table;
}

FlatTable FlatPayloads::unpacking(size_t rank) const {
  FlatTable table;
  for (size_t from = 0; from < pieces_.size(); ++from) {
    if (from == rank) continue;
    for (FlatPiece piece : pieces_[from]) {
      piece.payload += static_cast<int64_t>(from) * bytes_;
      add(table, piece);
    }
  }
  return table;
}

}  // namespace narrowcast
