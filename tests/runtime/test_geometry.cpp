// The one geometry against the table of docs/numerics.md, "Layout", for a matrix that no block
// divides.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::test {
namespace {

struct Usage {
  int64_t block_rows, block_columns, per_rows, per_columns, pad_rows, pad_columns;
  bool transposed, scale_transposed;
  int bits, scale_bytes;
};

constexpr Layout layout(const Usage& u) {
  return {u.block_rows,  u.block_columns, u.per_rows,         u.per_columns, u.pad_rows,
          u.pad_columns, u.transposed,    u.scale_transposed, u.bits,        u.scale_bytes};
}

constexpr Extent kMatrix{300, 520};

void check(const Usage& usage, Extent data, Extent scale) {
  CHECK(data_shape(layout(usage), kMatrix) == data);
  CHECK(scale_shape(layout(usage), kMatrix) == scale);
}

TEST_CASE("shapes of the stored buffers") {
  check({1, 32, 1, 32, 128, 4, false, false, 8, 1}, {300, 520}, {384, 20});
  check({32, 1, 32, 1, 4, 128, false, false, 8, 1}, {300, 520}, {12, 640});
  check({16, 16, 1, 16, 128, 4, false, false, 4, 1}, {300, 260}, {384, 36});
  check({16, 16, 16, 1, 128, 4, true, true, 4, 1}, {520, 150}, {640, 20});
  check({1, 32, 1, 32, 128, 4, false, false, 6, 1}, {300, 390}, {384, 20});
  check({32, 1, 32, 1, 128, 4, true, true, 6, 1}, {520, 225}, {640, 12});
  check({128, 128, 128, 128, 1, 4, false, false, 8, 4}, {300, 520}, {3, 8});
  check({128, 128, 128, 128, 1, 4, true, true, 8, 4}, {520, 300}, {5, 4});
  check({1, 128, 1, 128, 1, 4, false, true, 8, 4}, {300, 520}, {5, 300});
  check({128, 1, 128, 1, 1, 4, true, false, 8, 4}, {520, 300}, {3, 520});
  check({32, 32, 32, 32, 1, 1, true, true, 8, 4}, {520, 300}, {17, 10});
  check({0, 0, 0, 0, 0, 0, true, true, 8, 4}, {520, 300}, {1, 1});
}

TEST_CASE("every element has bits of its own, and a scale inside the buffer") {
  constexpr Extent kSmall{36, 52};
  for (const Usage& usage : {Usage{1, 32, 1, 32, 128, 4, false, false, 8, 1},
                             Usage{16, 16, 16, 1, 128, 4, true, true, 4, 1},
                             Usage{32, 1, 32, 1, 128, 4, true, true, 6, 1},
                             Usage{1, 128, 1, 128, 1, 4, false, true, 8, 4}}) {
    const Layout l = layout(usage);
    std::set<int64_t> bits;
    for (int64_t row = 0; row < kSmall.rows; ++row) {
      for (int64_t column = 0; column < kSmall.columns; ++column) {
        const BitPosition position = element_position(l, kSmall, row, column);
        CHECK(bits.insert(position.byte * 8 + position.shift).second);
        const Extent shape = scale_shape(l, kSmall);
        CHECK(scale_index(l, kSmall, row, column) < shape.rows * shape.columns);
      }
    }
    const Extent data = data_shape(l, kSmall);
    CHECK(*bits.begin() == 0);
    CHECK(*bits.rbegin() == data.rows * data.columns * 8 - l.element_bits);
  }
}

// The formulas of docs/numerics.md in 128 bits, which overflow nowhere. No matrix is made.
using Wide = __int128;

void check_in_128_bits(const Usage& u, Extent matrix, int64_t row, int64_t column) {
  CAPTURE(matrix.rows);
  CAPTURE(row);
  CAPTURE(column);
  const Layout l = layout(u);
  const bool t = u.transposed, st = u.scale_transposed;
  const Wide length = t ? matrix.rows : matrix.columns, lines = t ? matrix.columns : matrix.rows;
  const Wide bit = (Wide{t ? column : row} * length + (t ? row : column)) * u.bits;
  const BitPosition at = element_position(l, matrix, row, column);
  CHECK(Wide{at.byte} * 8 + at.shift == bit);
  const Extent data = data_shape(l, matrix);
  CHECK(Wide{data.rows} * data.columns * 8 == length * lines * u.bits);

  const auto up = [](Wide n, Wide k) { return (n + k - 1) / k * k; };
  const Wide down = up(matrix.rows, u.per_rows) / u.per_rows;
  const Wide across = up(matrix.columns, u.per_columns) / u.per_columns;
  const Wide i = row / u.per_rows, j = column / u.per_columns;
  const Wide scale_rows = up(st ? across : down, u.pad_rows);
  const Wide scale_columns = up(st ? down : across, u.pad_columns);
  CHECK(Wide{scale_index(l, matrix, row, column)} == (st ? j : i) * scale_columns + (st ? i : j));
  const Extent scale = scale_shape(l, matrix);
  CHECK(Wide{scale.rows} * scale.columns == scale_rows * scale_columns);
}

TEST_CASE("matrices of 2^31 elements and more, up to 2^40") {
  constexpr int64_t k2To31 = int64_t{1} << 31, k2To20 = 1 << 20;
  for (const Usage& usage : {Usage{1, 32, 1, 32, 128, 4, false, false, 8, 1},
                             Usage{32, 1, 32, 1, 4, 128, false, false, 8, 1},
                             Usage{16, 16, 1, 16, 128, 4, false, false, 4, 1},
                             Usage{16, 16, 16, 1, 128, 4, true, true, 4, 1},
                             Usage{1, 32, 1, 32, 128, 4, false, false, 6, 1},
                             Usage{32, 1, 32, 1, 128, 4, true, true, 6, 1},
                             Usage{128, 128, 128, 128, 1, 4, true, true, 8, 4},
                             Usage{1, 128, 1, 128, 1, 4, false, true, 8, 4},
                             Usage{128, 1, 128, 1, 1, 4, true, false, 8, 4}}) {
    for (const Extent matrix :
         {Extent{k2To20, k2To20}, Extent{4, k2To31 + 8}, Extent{k2To31 + 8, 4},
          Extent{70004, 65536}, Extent{k2To31 / 65536 + 4, 65532}}) {
      for (const int64_t row : {int64_t{0}, matrix.rows / 2 + 1, matrix.rows - 1}) {
        for (const int64_t column : {int64_t{0}, matrix.columns / 2 + 1, matrix.columns - 1}) {
          check_in_128_bits(usage, matrix, row, column);
        }
      }
    }
  }
  const Layout tensor = layout({0, 0, 0, 0, 0, 0, true, true, 8, 4});
  constexpr Extent kHuge{k2To20, k2To20};
  CHECK(element_position(tensor, kHuge, 5, k2To20 - 1).byte == (k2To20 - 1) * k2To20 + 5);
  CHECK(scale_index(tensor, kHuge, k2To20 - 1, k2To20 - 1) == 0);
}

TEST_CASE("sub-byte elements need whole bytes along a stored row") {
  const Layout four = layout({16, 16, 1, 16, 128, 4, false, false, 4, 1});
  const Layout six = layout({32, 1, 32, 1, 128, 4, true, true, 6, 1});
  CHECK(holds(four, {3, 2}));
  CHECK_FALSE(holds(four, {2, 3}));
  CHECK(holds(six, {4, 3}));
  CHECK_FALSE(holds(six, {6, 4}));
}

TEST_CASE("a box on the steps owns its bytes and its scales") {
  constexpr Extent kSmall{160, 288};
  for (const Usage& usage : {Usage{1, 32, 1, 32, 128, 4, false, false, 8, 1},
                             Usage{16, 16, 16, 1, 128, 4, true, true, 4, 1},
                             Usage{32, 1, 32, 1, 128, 4, true, true, 6, 1},
                             Usage{1, 128, 1, 128, 1, 4, false, true, 8, 4},
                             Usage{0, 0, 0, 0, 0, 0, true, true, 8, 4}}) {
    const Layout l = layout(usage);
    const Extent step = cut_step(l);
    const Box box{step, {std::min(3 * step.rows, kSmall.rows), kSmall.columns}};
    const Box data = data_box(l, box), scales = scale_box(l, box);
    const auto inside = [](const Box& b, int64_t row, int64_t column) {
      return b.begin.rows <= row && row < b.end.rows && b.begin.columns <= column &&
             column < b.end.columns;
    };
    const int64_t pitch = data_row_bytes(l, kSmall);
    for (int64_t row = 0; row < kSmall.rows; ++row) {
      for (int64_t column = 0; column < kSmall.columns; ++column) {
        const int64_t byte = element_position(l, kSmall, row, column).byte;
        const bool expected = inside(box, row, column);
        CHECK(inside(data, byte / pitch, byte % pitch) == expected);
        const Extent scale = scale_position(l, row, column);
        if (expected || !spans_tensor(l)) {
          CHECK(inside(scales, scale.rows, scale.columns) == expected);
        }
      }
    }
  }
}

TEST_CASE("steps of cuts") {
  CHECK(cut_step(layout({1, 32, 1, 32, 128, 4, false, false, 8, 1})) == Extent{1, 32});
  CHECK(cut_step(layout({16, 16, 16, 1, 128, 4, true, true, 4, 1})) == Extent{16, 16});
  CHECK(cut_step(layout({1, 2, 1, 2, 1, 1, false, false, 6, 1})) == Extent{1, 4});
  CHECK(cut_step(layout({0, 0, 0, 0, 0, 0, true, true, 4, 4})) == Extent{2, 1});
}

TEST_CASE("mirrored layouts") {
  const Layout rows = layout({1, 16, 1, 16, 128, 4, false, false, 4, 1});
  CHECK(mirrored(rows, layout({16, 1, 16, 1, 128, 4, true, true, 4, 1})));
  CHECK(mirrored(layout({0, 0, 0, 0, 0, 0, false, false, 8, 4}),
                 layout({0, 0, 0, 0, 0, 0, true, false, 8, 4})));
  CHECK_FALSE(mirrored(rows, layout({16, 1, 16, 1, 128, 4, false, false, 4, 1})));
  CHECK_FALSE(mirrored(rows, layout({16, 1, 16, 1, 128, 4, true, false, 4, 1})));
  CHECK_FALSE(mirrored(rows, layout({16, 1, 16, 1, 4, 128, true, true, 4, 1})));
  CHECK_FALSE(mirrored(rows, layout({32, 1, 32, 1, 128, 4, true, true, 4, 1})));
}

}  // namespace
}  // namespace narrowcast::test
