// The largest magnitude of a run of floats in cache. Magnitudes order like their bits, so an
// integer maximum serves.
#pragma once

#include <cstring>

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

// Sixteen words, in as many registers as the instruction set needs for them. Written out because
// compilers unroll the short loops of a block before they see that they could be vectors.
using Words = uint32_t __attribute__((vector_size(64)));
inline constexpr int kWords = 16;

NC_EVERYWHERE Words larger(Words a, Words b) { return a > b ? a : b; }

NC_EVERYWHERE Words load_words(const uint32_t* words) {
  Words w;
  std::memcpy(&w, words, sizeof(w));
  return w;
}

NC_EVERYWHERE Words load_magnitudes(const float* x) {
  Words bits;
  std::memcpy(&bits, x, sizeof(bits));
  bits &= kMagnitudeMask;
  return bits > kInfinityBits ? bits ^ bits : bits;  // NaN is dropped
}

NC_EVERYWHERE uint32_t largest_word(Words w) {
  w = larger(w,
             __builtin_shufflevector(w, w, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  w = larger(w,
             __builtin_shufflevector(w, w, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  w = larger(w,
             __builtin_shufflevector(w, w, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  w = larger(w,
             __builtin_shufflevector(w, w, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return w[0];
}

template <int kLength>
NC_EVERYWHERE uint32_t largest_magnitude(const float* x) {
  if constexpr (kLength % kWords == 0) {
    Words largest = load_magnitudes(x);
    for (int i = kWords; i < kLength; i += kWords)
      largest = larger(largest, load_magnitudes(x + i));
    return largest_word(largest);
  } else {
    uint32_t largest = 0;
    for (int i = 0; i < kLength; ++i) {
      const uint32_t bits = amax_bits(x[i]);
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
}

// largest[i] becomes the larger of itself and the magnitude of x[i]; for a multiple of 16 elements.
NC_EVERYWHERE void keep_larger_magnitudes(const float* x, int count, uint32_t* largest) {
  for (int i = 0; i < count; i += kWords) {
    const Words kept = larger(load_words(largest + i), load_magnitudes(x + i));
    std::memcpy(largest + i, &kept, sizeof(kept));
  }
}

}  // namespace narrowcast::inline NC_VARIANT
