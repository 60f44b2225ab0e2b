// Values in numbers that ask for threads: drawn once for all formats.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/narrow.hpp"
#include "tests/support/threads.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {

inline const std::vector<Extent> kShapes = {
    {1, 1},     {1, 32},    {32, 1},     {16, 48},    {32, 32},     {33, 31},    {36, 52},
    {64, 64},   {65, 96},   {96, 65},    {100, 60},   {127, 400},   {128, 128},  {129, 257},
    {256, 272}, {303, 300}, {304, 304},  {305, 256},  {320, 320},   {993, 512},  {1024, 1},
    {1, 4096},  {2, 4},     {250, 4096}, {4096, 250}, {2000, 2000}, {2048, 2048}};

// More than 1e8 elements, with a run of each kind for each block, so that special values do not
// decide every scale.
inline constexpr Extent kLarge{12288, 8448};

template <class Type>
std::vector<Type> narrowed(const std::vector<float>& values) {
  std::vector<Type> result(values.size());
  in_ranges(static_cast<int64_t>(values.size()), kLeastElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) result[i] = narrow<Type>(values[i]);
  });
  return result;
}

// Fills pieces of the vector, each from a Random of its own.
template <class Fill>
std::vector<float> filled(int64_t count, uint64_t seed, const Fill& fill) {
  std::vector<float> values(static_cast<size_t>(count));
  constexpr int64_t kPiece = kLeastElements;
  in_ranges((count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      Random random(seed << 32 | static_cast<uint64_t>(piece));
      const int64_t first = piece * kPiece, length = std::min(kPiece, count - first);
      fill(std::span(values).subspan(first, length), random);
    }
  });
  return values;
}

inline std::vector<float> draw_on_threads(Kind kind, int64_t count, uint64_t seed) {
  return filled(count, seed, [&](std::span<float> values, Random& random) {
    for (float& value : values) value = draw(kind, random);
  });
}

inline std::vector<float> draw_runs(int64_t count, uint64_t seed) {
  return filled(count, seed, [](std::span<float> values, Random& random) {
    for (size_t first = 0; first < values.size(); first += 256) {
      const Kind kind = kKinds[random.below(5)];
      for (size_t i = first; i < std::min(first + 256, values.size()); ++i)
        values[i] = draw(kind, random);
    }
  });
}

}  // namespace narrowcast::test
