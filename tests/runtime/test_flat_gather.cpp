// The law of the packed gather: owners of flat shards, each with its own bytes alone, have those of
// the whole cast after it, and no byte moves twice.
#include <doctest/doctest.h>

#include "runtime/gather/flat_tiles.hpp"
#include "tests/support/flat_gathers.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/threads.hpp"

namespace narrowcast::test {
namespace {

constexpr size_t kOwners[] = {1, 2, 3, 4, 5, 7, 8, 16, 128};

void run(const FlatTable& table, uint8_t* payload, bool unpack) {
  FlatTransfer transfer = flat_transfer_of(table, payload, unpack);
  if (unpack) transfer.parallel_for = on_all_threads;
  REQUIRE(cpu_flat_transfer()(&transfer) == nullptr);
}

// What the ranks do: each packs, all get all payloads, each unpacks.
void check_gather(const Bucket& bucket) {
  std::vector<uint8_t> payloads;
  for (size_t rank = 0; rank < bucket.ranks(); ++rank) {
    const FlatPayloads layout(bucket.matrices(rank), bucket.ranges());
    const auto bytes = static_cast<size_t>(layout.bytes());
    REQUIRE(bytes % 256 == 0);
    payloads.resize(bucket.ranks() * bytes, kPoison);
    run(layout.packing(rank), payloads.data() + rank * bytes, /*unpack=*/false);
  }
  for (size_t rank = 0; rank < bucket.ranks(); ++rank) {
    const FlatPayloads layout(bucket.matrices(rank), bucket.ranges());
    run(layout.unpacking(rank), payloads.data(), /*unpack=*/true);
    CHECK(bucket.fault(rank) == "");
  }
}

TEST_CASE("all formats in one bucket, cut anywhere, on 1 to 128 ranks") {
  Random random(1);
  for (const size_t owners : kOwners) {
    CAPTURE(owners);
    for (int i = 0; i < (owners < 128 ? 12 : 4); ++i) {
      Bucket bucket;
      fill(bucket, all_plugins(), {36, 52}, owners, random);
      REQUIRE(bucket.size() == all_plugins().size());
      check_gather(bucket);
    }
  }
}

TEST_CASE("odd, flat, tall and larger matrices in one bucket") {
  Random random(2);
  for (const size_t owners : {2, 3, 8}) {
    CAPTURE(owners);
    Bucket bucket;
    for (const Extent matrix :
         {Extent{37, 53}, Extent{1, 40}, Extent{44, 1}, Extent{1, 1}, Extent{100, 60},
          Extent{4, 2052}, Extent{2000, 4}, Extent{130, 390}, Extent{304, 304}, Extent{256, 128},
          Extent{40000, 4}, Extent{4, 20004}})
      fill(bucket, all_plugins(), matrix, owners, random);
    check_gather(bucket);
  }
}

TEST_CASE("owners of nothing and of one element, first, in the middle and last") {
  constexpr Extent kMatrix{36, 52};
  constexpr int64_t kElements = kMatrix.rows * kMatrix.columns;
  for (const std::vector<int64_t>& cuts :
       std::vector<std::vector<int64_t>>{{},
                                         {0},
                                         {kElements},
                                         {0, 0, 700},
                                         {700, 700, 700},
                                         {700, kElements, kElements},
                                         {1, 2, 3, 4},
                                         {52, 104, 105, 1000},
                                         {700, 701, 702},
                                         {kElements - 2, kElements - 1},
                                         {0, 1, 1, kElements - 1}}) {
    Bucket bucket;
    for (const nc_plugin* plugin : all_plugins()) bucket.add(*plugin, kMatrix, cuts);
    check_gather(bucket);
  }
}

TEST_CASE("lines that end where a tile's bytes do, or a few bytes from there") {
  constexpr Extent kMatrix{16, 6144};
  for (const int64_t begin : {0, 1, 5, 16, 31}) {
    for (const int64_t more : {-1, 0, 1, 3, 15, 16, 17}) {
      Bucket bucket;
      for (const nc_plugin* plugin : all_plugins()) {
        const int64_t chunk = kFlatChunk * 8 / plugin->format->rowwise.element_bits;
        const int64_t first = begin + chunk + more, second = first + 2 * chunk + more;
        bucket.add(*plugin, kMatrix, {begin, first, std::min<int64_t>(second, 16 * 6144)});
      }
      check_gather(bucket);
    }
  }
}

// The owner of each byte of a buffer, from the geometry of single elements: the first one's whose
// bits are in it, along the matrix's rows; -1 for padding.
std::vector<int> owners_of(const nc_format& format, Extent matrix, int buffer,
                           const std::vector<int64_t>& cuts) {
  const Layout& layout = layout_of(format, buffer);
  std::vector<int> owner(static_cast<size_t>(bytes_of(format, matrix, buffer)), -1);
  for (int64_t i = matrix.rows * matrix.columns - 1; i >= 0; --i) {
    const int mine = static_cast<int>(std::ranges::upper_bound(cuts, i) - cuts.begin());
    const int64_t row = i / matrix.columns, column = i % matrix.columns;
    int64_t first = scale_index(layout, matrix, row, column) * layout.scale_bytes;
    int64_t bytes = layout.scale_bytes;
    if (buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA) {
      const BitPosition at = element_position(layout, matrix, row, column);
      first = at.byte;
      bytes = at.shift + layout.element_bits > 8 ? 2 : 1;
    }
    std::fill_n(owner.begin() + first, bytes, mine);
  }
  return owner;
}

TEST_CASE("each byte that is no padding is moved by its owner, once, to a place of its own") {
  Random random(3);
  for (const Extent matrix : {Extent{36, 52}, Extent{37, 53}, Extent{260, 132}}) {
    for (const size_t owners : kOwners) {
      const std::vector<int64_t> cuts = drawn_cuts(random, matrix.rows * matrix.columns, owners);
      for (const nc_plugin* plugin : all_plugins()) {
        const nc_format& format = *plugin->format;
        if (!holds(format, matrix)) continue;
        CAPTURE(std::string(format.name));
        FlatRanges ranges;
        int64_t begin = 0;
        for (size_t rank = 0; rank < owners; ++rank) {
          const int64_t end = rank + 1 < owners ? cuts[rank] : matrix.rows * matrix.columns;
          ranges.push_back({{begin, end}});
          begin = end;
        }
        for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
          CAPTURE(b);
          FlatMatrix one{&format, matrix, {}};
          uint8_t there = 0;
          one.buffer[static_cast<size_t>(b)] = &there;  // nothing is read
          const FlatPayloads layout(std::span(&one, 1), ranges);
          if (!is_gathered(format, b)) {
            CHECK(layout.bytes() == 0);
            continue;
          }
          const std::vector<int> expected = owners_of(format, matrix, b, cuts);
          std::vector<int> mover(expected.size(), -1);
          int64_t moved = 0;
          for (size_t rank = 0; rank < owners; ++rank) {
            const auto used = static_cast<size_t>(layout.used(rank));
            REQUIRE(layout.used(rank) <= layout.bytes());
            std::vector<int> places(used);
            for (const FlatPiece& piece : layout.packing(rank).pieces) {
              for (int64_t line = piece.first; line < piece.first + piece.lines; ++line) {
                const FlatRun run = run_of(piece, line);
                REQUIRE(run.bytes >= 0);
                moved += run.bytes;
                for (int64_t i = 0; i < run.bytes; ++i) {
                  mover[static_cast<size_t>(run.buffer + i)] = static_cast<int>(rank);
                  ++places[static_cast<size_t>(run.payload + i)];
                }
              }
            }
            CHECK(std::ranges::all_of(places, [](int count) { return count <= 1; }));
          }
          CHECK(mover == expected);
          CHECK(moved == std::ssize(expected) - std::ranges::count(expected, -1));
        }
      }
    }
  }
}

// The first element of a cell, along the matrix's rows.
int64_t first_element(const Cells& cells, int64_t line, int64_t cell) {
  const int64_t unit = cell * 8 / cells.unit_bits;
  const int64_t row = (cells.transposed ? unit : line) * cells.unit_rows;
  const int64_t column = (cells.transposed ? line : unit) * cells.unit_columns;
  return row * cells.columns + column;
}

// Formulas alone: the front of an element is where cells begin at it or behind it.
TEST_CASE("fronts in matrices of more than 2^31 elements") {
  Random random(4);
  for (const Extent matrix : {Extent{65540, 32772}, Extent{4, int64_t{1} << 32},
                              Extent{(int64_t{1} << 32) + 4, 8}, Extent{131072, 131072}}) {
    const int64_t elements = matrix.rows * matrix.columns;
    for (const nc_plugin* plugin : all_plugins()) {
      CAPTURE(std::string(plugin->format->name));
      for (const Layout& layout : {plugin->format->rowwise, plugin->format->columnwise}) {
        std::vector<Cells> kinds{data_cells(layout, matrix)};
        if (!spans_tensor(layout)) kinds.push_back(scale_cells(layout, matrix));
        for (const Cells& cells : kinds) {
          std::vector<int64_t> cuts{0, elements - 1, elements, int64_t{1} << 31};
          for (int i = 0; i < 50; ++i)
            cuts.push_back(static_cast<int64_t>(random.bits() % static_cast<uint64_t>(elements)));
          for (const int64_t cut : cuts) {
            const Front front = cells.front(cut);
            for (const int64_t near : {int64_t{0}, front.turn, cells.lines}) {
              for (int64_t line = near - 2; line <= near + 2; ++line) {
                if (line < 0 || line >= cells.lines) continue;
                const int64_t at = on_line(front, line);
                REQUIRE((at >= 0 && at <= cells.width));
                if (at > 0) REQUIRE(first_element(cells, line, at - 1) < cut);
                if (at < cells.width) REQUIRE(first_element(cells, line, at) >= cut);
                REQUIRE(above_line(front, line + 1) == above_line(front, line) + at);
              }
            }
          }
          const Front begin = cells.front(0), end = cells.front(elements);
          CHECK(above_line(begin, cells.lines) == 0);
          CHECK(above_line(end, cells.lines) == cells.lines * cells.width);
        }
      }
    }
  }
}

TEST_CASE("long copies begin at equal places within words, in the payload and in the buffer") {
  Bucket bucket;
  for (const nc_plugin* plugin : all_plugins()) bucket.add(*plugin, {36, 52}, {701, 1401});
  for (size_t rank = 0; rank < bucket.ranks(); ++rank) {
    const FlatPayloads layout(bucket.matrices(rank), bucket.ranges());
    for (const FlatPiece& piece : layout.packing(rank).pieces) {
      const FlatRun run = run_of(piece, piece.first);
      CHECK((run.payload - run.buffer) % kFlatWord == 0);
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
