// One side of a stored matrix as a picture shows it: the first blocks, a gap, the last block, and
// the padding, each with its true numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace narrowcast::codegen {

struct Segment {
  enum class Kind { kBlock, kGap, kPadding };
  Kind kind;
  int64_t begin, end;  // entries of the stored matrix along this side
  int64_t block;       // its number, if it is one
  int at, length;      // in the picture, from the matrix's corner
};

struct Axis {
  std::vector<Segment> segments;
  int length() const { return segments.back().at + segments.back().length; }
};

struct Tick {
  int64_t entry;
  int at;
};

// The entry that each segment begins with, and the end.
std::vector<Tick> ticks(const Axis& axis);

enum class Side { kAcross, kDown };

// Of a side with `used` entries, `block` of them a block, stored in `stored` entries: the rest is
// padding. A block's length grows with the logarithm of its entries, up to that of 128.
Axis axis_of(int64_t used, int64_t stored, int64_t block, Side side);

}  // namespace narrowcast::codegen
