// The order of swizzled scales against cuBLAS's formulas for the way back, from bytes to scales.
#include <doctest/doctest.h>

#include "runtime/products/swizzle.hpp"

namespace narrowcast::test {
namespace {

TEST_CASE("scales of whole tiles fill them, each at a place of its own") {
  for (const Extent scales : {Extent{128, 4}, Extent{128, 12}, Extent{384, 4}, Extent{256, 20}}) {
    CHECK(swizzled_extent(scales) == scales);
    const int64_t across = scales.columns / 4;
    for (int64_t byte = 0; byte < scales.rows * scales.columns; ++byte) {
      const int64_t tile = byte / 512, offset = byte % 512;
      const int64_t outer = tile / across * 128 + offset % 16 / 4 * 32 + offset / 16;
      const int64_t inner = tile % across * 4 + offset % 4;
      REQUIRE(swizzled_index(outer, inner, scales.columns) == byte);
    }
  }
}

TEST_CASE("scales that fill no whole tiles lie as if they did") {
  CHECK(swizzled_extent({1, 1}) == Extent{128, 4});
  CHECK(swizzled_extent({127, 3}) == Extent{128, 4});
  CHECK(swizzled_extent({129, 5}) == Extent{256, 8});
  CHECK(swizzled_extent({0, 5}) == Extent{0, 8});
  for (int64_t row = 0; row < 300; ++row) {
    for (int64_t group = 0; group < 5; ++group) {
      for (const int64_t groups : {5, 6, 7})
        CHECK(swizzled_index(row, group, groups) == swizzled_index(row, group, 8));
    }
  }
  constexpr int64_t kRows = int64_t{1} << 31, kGroups = 1 << 20;
  CHECK(swizzled_index(kRows - 1, kGroups - 1, kGroups) == kRows * kGroups - 1);
}

}  // namespace
}  // namespace narrowcast::test
