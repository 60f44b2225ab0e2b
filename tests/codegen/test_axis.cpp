// The sides of stored matrices in pictures.
#include <doctest/doctest.h>

#include "codegen/picture/axis.hpp"

namespace narrowcast::codegen::test {
namespace {

using Kind = Segment::Kind;

struct Piece {
  Kind kind;
  int64_t begin, end, block;
  bool operator==(const Piece&) const = default;
};

std::vector<Piece> pieces(const Axis& axis) {
  std::vector<Piece> result;
  for (const Segment& s : axis.segments) result.push_back({s.kind, s.begin, s.end, s.block});
  return result;
}

TEST_CASE("a few blocks are all shown, the last as ragged as it is") {
  CHECK(pieces(axis_of(300, 300, 128, Side::kDown)) ==
        std::vector<Piece>{
            {Kind::kBlock, 0, 128, 0}, {Kind::kBlock, 128, 256, 1}, {Kind::kBlock, 256, 300, 2}});
  CHECK(pieces(axis_of(1, 1, 1, Side::kAcross)) == std::vector<Piece>{{Kind::kBlock, 0, 1, 0}});
}

TEST_CASE("of many blocks the first two and the last are shown, and the padding") {
  CHECK(pieces(axis_of(300, 384, 16, Side::kDown)) ==
        std::vector<Piece>{{Kind::kBlock, 0, 16, 0},
                           {Kind::kBlock, 16, 32, 1},
                           {Kind::kGap, 32, 288, 0},
                           {Kind::kBlock, 288, 300, 18},
                           {Kind::kPadding, 300, 384, 0}});
}

TEST_CASE("segments lie side by side, and longer blocks are not drawn shorter") {
  const Axis axis = axis_of(520, 640, 32, Side::kAcross);
  int at = 0;
  for (const Segment& segment : axis.segments) {
    CHECK(segment.at == at);
    CHECK(segment.length > 0);
    at += segment.length;
  }
  CHECK(axis.length() == at);
  int before = 0;
  for (const int64_t block : {1, 2, 4, 16, 32, 64, 128, 1024}) {
    const int length = axis_of(block, block, block, Side::kDown).length();
    CHECK(length >= before);
    before = length;
  }
}

}  // namespace
}  // namespace narrowcast::codegen::test
