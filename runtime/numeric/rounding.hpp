// The two roundings of a cast. Nearest is a property of each number type (`encode`); stochastic
// adds a random word for each element, a function of seed, step and the element's index in the
// whole tensor, so that tilings, shards and machines agree. docs/numerics.md, "Stochastic
// rounding".
#pragma once

#include "runtime/numeric/philox.hpp"

namespace narrowcast::inline NC_VARIANT {

struct Nearest {};

struct Stochastic {
  uint64_t seed, step;
  uint64_t first;  // index of the matrix's first element in the whole tensor

  // The words of the elements 4 * group to 4 * group + 3 of the whole tensor.
  NC_EVERYWHERE constexpr PhiloxWords words(uint64_t group) const {
    const PhiloxWords counter = {{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                                  static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)}};
    return philox(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
};

// The upper of two neighbours is taken if this many 2^-24ths are below the fraction between them:
// 24 bits, because a float holds each of them.
NC_EVERYWHERE constexpr float threshold_of(uint32_t random_word) {
  return static_cast<float>(random_word >> 8);
}

// floor(x), or one more with the probability of x's fraction; for 0 <= x < 2^24. Every operation is
// exact.
NC_EVERYWHERE constexpr uint32_t round_stochastically(float x, uint32_t random_word) {
  const uint32_t below = static_cast<uint32_t>(static_cast<int32_t>(x));
  const float fraction = x - static_cast<float>(static_cast<int32_t>(below));
  return below + (threshold_of(random_word) < fraction * 16777216.0f ? 1 : 0);
}

}  // namespace narrowcast::inline NC_VARIANT
