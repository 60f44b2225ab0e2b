// Numbers that meet every tie, threshold and underflow, for comparisons byte by byte. Random data
// alone meets none of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::test {

// splitmix64, so that every machine draws the same.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }

 private:
  uint64_t state_;
};

enum class Kind {
  kOrdinary,    // as weights are
  kBits,        // any 32 bits: NaN, infinities and subnormals among them
  kBoundaries,  // powers of two and short significands, with their neighbours
  kRagged,      // neighbours of very different size
  kTiny         // around the smallest numbers
};
inline constexpr Kind kKinds[] = {Kind::kOrdinary, Kind::kBits, Kind::kBoundaries, Kind::kRagged,
                                  Kind::kTiny};

inline float draw(Kind kind, Random& random) {
  const float sign = random.below(2) ? 1.0f : -1.0f;
  switch (kind) {
    case Kind::kOrdinary:
      return (random.uniform() + random.uniform() + random.uniform() - 1.5f) * 0.04f;
    case Kind::kBits:
      return float_of(static_cast<uint32_t>(random.bits()));
    case Kind::kBoundaries: {
      const float significand = 1.0f + static_cast<float>(random.below(64)) / 64.0f;
      const float value = significand * std::ldexp(1.0f, random.below(24) - 12);
      return sign * float_of(bits_of(value) + static_cast<uint32_t>(random.below(3)) - 1);
    }
    case Kind::kRagged:
      return sign * random.uniform() * std::ldexp(1.0f, random.below(60) - 40);
    case Kind::kTiny:
      return random.below(8) == 0
                 ? sign * 0.0f
                 : sign * float_of(static_cast<uint32_t>(random.bits()) % 0x03000000u);
  }
  return 0;
}

inline std::vector<float> draw(Kind kind, int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw(kind, random);
  return values;
}

}  // namespace narrowcast::test
