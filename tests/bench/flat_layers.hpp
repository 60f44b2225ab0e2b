// The flat shards of the benchmarks: all parameters of Llama's layers in their order, one after the
// other, cut into equal parts, as a distributed optimizer has them.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/bench/layers.hpp"

namespace narrowcast::test {

inline constexpr int64_t kOwners = 8, kOwner = 3;

// Plain, of as many elements as the layers are wide. One lies ahead of the attention's weights, one
// ahead of the others'.
inline constexpr int64_t kNorm = 4096;
inline constexpr int kAheadOfMlp = 4;  // in kLayer

// A weight's place among all, and the part of it that an owner has.
struct Piece {
  Extent matrix;
  std::vector<int64_t> cuts;
  int64_t begin, end;
};

inline int64_t elements_of_layers() {
  int64_t elements = 0;
  for (const Extent matrix : all_layers()) elements += matrix.rows * matrix.columns;
  return elements;
}

inline constexpr int64_t elements_of_norms() { return int64_t{kLayers} * 2 * kNorm; }

// The weights with these cuts through all parameters, and the parts from `begin` to `end`.
inline std::vector<Piece> pieces_with(const std::vector<int64_t>& cuts, int64_t begin,
                                      int64_t end) {
  std::vector<Piece> pieces;
  int64_t first = 0;
  int place = 0;
  for (const Extent matrix : all_layers()) {
    if (place == 0 || place == kAheadOfMlp) first += kNorm;
    place = (place + 1) % static_cast<int>(std::size(kLayer));
    const int64_t elements = matrix.rows * matrix.columns;
    const auto within = [&](int64_t at) { return std::clamp<int64_t>(at - first, 0, elements); };
    Piece piece{matrix, {}, within(begin), within(end)};
    for (const int64_t cut : cuts) piece.cuts.push_back(within(cut));
    pieces.push_back(piece);
    first += elements;
  }
  return pieces;
}

inline std::vector<Piece> pieces_of(int64_t owner = kOwner) {
  const int64_t all = elements_of_layers() + elements_of_norms(), share = all / kOwners;
  std::vector<int64_t> cuts;
  for (int64_t i = 1; i < kOwners; ++i) cuts.push_back(i * share);
  // What lies behind the last share is the last owner's.
  return pieces_with(cuts, owner * share, owner + 1 == kOwners ? all : (owner + 1) * share);
}

}  // namespace narrowcast::test
