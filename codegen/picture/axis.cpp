#include "codegen/picture/axis.hpp"

#include <algorithm>
#include <bit>

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

constexpr int64_t kMostBlocks = 4;  // more than these are shown as the first two and the last
constexpr int64_t kFirstBlocks = 2;

// Wide enough for a block's name and a tick's number, high enough for a line of text.
int length_of(int64_t entries, Side side) {
  const int doublings =
      std::min(static_cast<int>(std::bit_width(static_cast<uint64_t>(entries))), 8);
  return side == Side::kAcross ? 46 + 5 * doublings : 21 + 3 * doublings;
}

int gap_length(Side side) { return side == Side::kAcross ? 30 : 22; }
int padding_length(Side side) { return side == Side::kAcross ? 48 : 26; }

}  // namespace

std::vector<Tick> ticks(const Axis& axis) {
  std::vector<Tick> ticks;
  for (const Segment& segment : axis.segments) ticks.push_back({segment.begin, segment.at});
  ticks.push_back({axis.segments.back().end, axis.length()});
  return ticks;
}

Axis axis_of(int64_t used, int64_t stored, int64_t block, Side side) {
  Axis axis;
  int at = 0;
  const auto add = [&](Segment::Kind kind, int64_t begin, int64_t end, int64_t number, int length) {
    axis.segments.push_back({kind, begin, end, number, at, length});
    at += length;
  };
  const auto add_block = [&](int64_t number) {
    const int64_t begin = number * block, end = std::min(begin + block, used);
    add(Segment::Kind::kBlock, begin, end, number, length_of(end - begin, side));
  };
  const int64_t blocks = ceil_div(used, block);
  const int64_t first = blocks <= kMostBlocks ? blocks : kFirstBlocks;
  for (int64_t number = 0; number < first; ++number) add_block(number);
  if (first < blocks) {
    add(Segment::Kind::kGap, first * block, (blocks - 1) * block, 0, gap_length(side));
    add_block(blocks - 1);
  }
  if (used < stored) add(Segment::Kind::kPadding, used, stored, 0, padding_length(side));
  return axis;
}

}  // namespace narrowcast::codegen
