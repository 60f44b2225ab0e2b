// Matrices of many formats, in flat shards of as many owners, whose bytes are gathered as one
// bucket: on each owner what it has cast itself, and a pattern elsewhere.
#pragma once

#include <deque>

#include "runtime/gather/flat_payloads.hpp"
#include "tests/support/flat_shards.hpp"

namespace narrowcast::test {

// Which bytes of a buffer are no padding.
inline std::vector<bool> used_bytes(const nc_format& format, Extent matrix, int buffer) {
  std::vector<bool> used(static_cast<size_t>(bytes_of(format, matrix, buffer)), true);
  if (buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA) return used;
  const Layout& layout = layout_of(format, buffer);
  const Extent extent = scale_extent(layout, matrix), shape = scale_shape(layout, matrix);
  for (size_t i = 0; i < used.size(); ++i) {
    const int64_t entry = static_cast<int64_t>(i) / layout.scale_bytes;
    used[i] = entry / shape.columns < extent.rows && entry % shape.columns < extent.columns;
  }
  return used;
}

// Whether a gather brings a buffer's bytes.
inline bool is_gathered(const nc_format& format, int buffer) {
  const bool scale = buffer == NC_ROWWISE_SCALE || buffer == NC_COLUMNWISE_SCALE;
  if (buffer >= NC_COLUMNWISE_DATA && format.columnwise_derived != 0) return false;
  return !scale || !spans_tensor(layout_of(format, buffer));
}

class Bucket {
 public:
  // Adds a matrix that is cut there; all of a bucket have as many cuts.
  void add(const nc_plugin& plugin, Extent matrix, const std::vector<int64_t>& cuts) {
    constexpr nc_history kHistory{.present = 3, .next = 5, .amax = {0.5f, 2}};
    const nc_format& format = *plugin.format;
    State state{
        draw(Kind::kOrdinary, matrix.rows * matrix.columns, weights_.size() + 1), {}, {}, {}};
    Quantized whole = whole_of(format, *plugin.cpu, matrix, state, {}, kHistory);
    Weight& weight =
        weights_.emplace_back(format, *plugin.cpu, matrix, state, cuts, kHistory, std::move(whole));
    weight.owners.cast({});
    ranges_.resize(cuts.size() + 1);
    int64_t begin = 0;
    for (size_t rank = 0; rank <= cuts.size(); ++rank) {
      const int64_t end = rank < cuts.size() ? cuts[rank] : matrix.rows * matrix.columns;
      ranges_[rank].emplace_back(begin, end);
      begin = end;
    }
  }

  size_t ranks() const { return ranges_.size(); }
  size_t size() const { return weights_.size(); }
  const FlatRanges& ranges() const { return ranges_; }
  const nc_format& format(size_t weight) const { return weights_[weight].format; }

  // A buffer of a rank, as it is now.
  std::span<uint8_t> bytes(size_t rank, size_t weight, int buffer) const {
    return weights_[weight].owners.bytes(rank, buffer);
  }

  std::vector<FlatMatrix> matrices(size_t rank) const {
    std::vector<FlatMatrix> all;
    for (size_t i = 0; i < weights_.size(); ++i) {
      FlatMatrix& one = all.emplace_back(FlatMatrix{&weights_[i].format, weights_[i].matrix, {}});
      for (int b = 0; b < NC_BUFFER_COUNT; ++b)
        one.buffer[static_cast<size_t>(b)] = bytes(rank, i, b).data();
    }
    return all;
  }

  // Empty, or the first byte of a rank that is not as a whole cast and a gather leave it.
  std::string fault(size_t rank) const {
    for (size_t i = 0; i < weights_.size(); ++i) {
      const Weight& weight = weights_[i];
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const std::vector<bool> used = used_bytes(weight.format, weight.matrix, b);
        const bool comes = is_gathered(weight.format, b) || b == NC_ROWWISE_SCALE;
        const std::span<const uint8_t> actual = bytes(rank, i, b);
        for (size_t at = 0; at < used.size(); ++at) {
          const bool right = comes && used[at];
          const uint8_t expected = right ? weight.whole.buffer[b][at] : kPoison;
          if (actual[at] == expected) continue;
          return std::string(weight.format.name) + ", rank " + std::to_string(rank) + " of " +
                 std::to_string(ranks()) + ": byte " + std::to_string(at) + " of buffer " +
                 std::to_string(b) + " is " + std::to_string(actual[at]) + ", not " +
                 std::to_string(expected) + (used[at] ? "" : " (padding)");
        }
      }
    }
    return {};
  }

 private:
  struct Weight {
    Weight(const nc_format& its_format, const nc_machine& cpu, Extent its_matrix,
           const State& state, const std::vector<int64_t>& cuts, const nc_history& history,
           Quantized its_whole)
        : format(its_format),
          matrix(its_matrix),
          owners(its_format, cpu, its_matrix, state, cuts, history),
          whole(std::move(its_whole)) {}
    const nc_format& format;
    Extent matrix;
    Owners<HostMemory> owners;
    Quantized whole;
  };

  std::deque<Weight> weights_;
  FlatRanges ranges_;
};

inline FlatTransfer flat_transfer_of(const FlatTable& table, uint8_t* payload, bool unpack) {
  FlatTransfer transfer{};
  transfer.pieces = table.pieces.data();
  transfer.piece_of_tile = table.piece_of_tile.data();
  transfer.tiles = table.tiles();
  transfer.payload = payload;
  transfer.unpack = unpack;
  return transfer;
}

// Cuts of a number of owners: anywhere, near to each other, or all at one place.
inline std::vector<int64_t> drawn_cuts(Random& random, int64_t elements, size_t owners) {
  std::vector<int64_t> cuts;
  const int way = random.below(4), places = static_cast<int>(elements) + 1;
  const int64_t middle = random.below(places);
  for (size_t i = 1; i < owners; ++i) {
    const int64_t anywhere = random.below(places);
    const int64_t near = std::min(middle + static_cast<int64_t>(i) / 2, elements);
    const int64_t equal = ceil_div(elements, static_cast<int64_t>(owners));
    cuts.push_back(way == 0   ? near
                   : way == 1 ? std::min(equal * static_cast<int64_t>(i), elements)
                              : anywhere);
  }
  std::ranges::sort(cuts);
  return cuts;
}

// The plugins of a matrix, each with cuts of its own, in one bucket.
inline void fill(Bucket& bucket, const std::vector<const nc_plugin*>& plugins, Extent matrix,
                 size_t owners, Random& random) {
  for (const nc_plugin* plugin : plugins) {
    if (!holds(*plugin->format, matrix)) continue;
    bucket.add(*plugin, matrix, drawn_cuts(random, matrix.rows * matrix.columns, owners));
  }
}

}  // namespace narrowcast::test
