// The largest magnitude of a run of floats in cache. Magnitudes order like their bits, so an
// integer maximum serves; written with vectors, because compilers unroll the short loops of a block
// before they see that they could be vectors.
#pragma once

#include <cstring>

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// Signed, because every instruction set compares signed words; a magnitude has no sign bit.
using Words = int32_t __attribute__((vector_size(kVectorBytes)));
inline constexpr int kWords = kVectorBytes / 4;

NC_EVERYWHERE Words larger(Words a, Words b) { return a > b ? a : b; }

NC_EVERYWHERE Words load_words(const void* words) {
  Words w;
  std::memcpy(&w, words, sizeof(w));
  return w;
}

// `most`: as in amax_bits.
NC_EVERYWHERE Words load_magnitudes(const float* x, uint32_t most) {
  const Words magnitude = load_words(x) & static_cast<int32_t>(kMagnitudeMask);
  return magnitude & (magnitude <= static_cast<int32_t>(most));
}

NC_EVERYWHERE int32_t largest_word(Words words) {
  using Quad = int32_t __attribute__((vector_size(16)));
  Quad quads[kVectorBytes / 16];
  std::memcpy(quads, &words, sizeof(words));
  for (int i = 1; i < kVectorBytes / 16; ++i) quads[0] = quads[0] > quads[i] ? quads[0] : quads[i];
  const int32_t even = quads[0][0] > quads[0][2] ? quads[0][0] : quads[0][2];
  const int32_t odd = quads[0][1] > quads[0][3] ? quads[0][1] : quads[0][3];
  return even > odd ? even : odd;
}

template <int kLength>
NC_EVERYWHERE uint32_t largest_magnitude(const float* x, uint32_t most) {
  int32_t largest = 0;
  if constexpr (kLength % kWords == 0) {
    Words words = load_magnitudes(x, most);
    for (int i = kWords; i < kLength; i += kWords)
      words = larger(words, load_magnitudes(x + i, most));
    largest = largest_word(words);
  } else {
    for (int i = 0; i < kLength; ++i) {
      const int32_t bits = static_cast<int32_t>(amax_bits(x[i], most));
      largest = bits > largest ? bits : largest;
    }
  }
  return static_cast<uint32_t>(largest);
}

// From bits; a NaN is the same on every machine.
NC_EVERYWHERE float amax_of(uint32_t largest) {
  return float_of(largest > kInfinityBits ? kMagnitudeMask : largest);
}

// largest[i] becomes the larger of itself and the magnitude of x[i]; for a multiple of 16 elements.
NC_EVERYWHERE void keep_larger_magnitudes(const float* x, int count, uint32_t most,
                                          uint32_t* largest) {
  for (int i = 0; i < count; i += kWords) {
    const Words kept = larger(load_words(largest + i), load_magnitudes(x + i, most));
    std::memcpy(largest + i, &kept, sizeof(kept));
  }
}

}  // namespace narrowcast::inline NC_VARIANT
