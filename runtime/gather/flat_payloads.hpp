// Where the bytes of every rank's flat shards lie in the payloads of a packed gather, and the
// tables of the launches that move them. Every rank computes the same from shapes and ranges alone.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "runtime/gather/flat_transfer.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast {

// A matrix that is gathered: its buffers in the machine's memory. NULL where one is absent, on all
// ranks alike. Columnwise ones that follow from rowwise ones, and scales of tensors, stay.
struct FlatMatrix {
  const nc_format* format;
  Extent matrix;
  std::array<uint8_t*, NC_BUFFER_COUNT> buffer;
};

// Elements that ranks own: of each rank, of each matrix, the first and the one behind the last.
using FlatRanges = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

// What a launch reads, in the host's memory: see FlatTransfer.
struct FlatTable {
  std::vector<FlatPiece> pieces;
  std::vector<int32_t> piece_of_tile;

  int64_t tiles() const { return static_cast<int64_t>(piece_of_tile.size()); }
};

class FlatPayloads {
 public:
  // Ranges cover each matrix once, in any order of the ranks. `least_bytes`: of a payload, in whole
  // steps of 256.
  FlatPayloads(std::span<const FlatMatrix> matrices, const FlatRanges& ranges,
               int64_t least_bytes = 0);

  // Of each rank, padded: an all-gather takes equal sizes.
  int64_t bytes() const { return bytes_; }
  // Of a rank, without what is added behind.
  int64_t used(size_t rank) const { return used_[rank]; }

  // From a rank's buffers to its payload.
  FlatTable packing(size_t rank) const;
  // The same from buffers that have some rows of each matrix alone, from `first_rows` on, which are
  // multiples of the formats' row steps. `owned`: the rank's elements, as in the ranges.
  FlatTable packing(size_t rank, std::span<const FlatMatrix> parts,
                    std::span<const int64_t> first_rows,
                    std::span<const std::pair<int64_t, int64_t>> owned) const;
  // From the payloads of all ranks to the buffers of one, which has its own part already.
  FlatTable unpacking(size_t rank) const;

 private:
  std::vector<std::vector<FlatPiece>> pieces_;  // of each rank
  std::vector<int64_t> used_;
  int64_t bytes_;
};

}  // namespace narrowcast
