// Codes of a run of values, each with its multiplier, one a byte.
#pragma once

#include "runtime/machine.hpp"
#include "runtime/numeric/rounding.hpp"

namespace narrowcast::inline NC_VARIANT {

// Runs are multiples of 16 elements, and at most this long.
inline constexpr int kLongestRun = 1024;

// Words first, bytes after: with lanes of one width, every operation is one instruction a vector.
NC_EVERYWHERE void bytes_of_words(const uint32_t* __restrict words, int count,
                                  uint8_t* __restrict bytes) {
  for (int i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(words[i]);
}

template <class Element>
NC_EVERYWHERE void encode_run(const float* __restrict x, const float* __restrict multiplier,
                              int count, Nearest, int64_t, uint8_t* __restrict codes) {
  alignas(64) uint32_t words[kLongestRun];
  for (int i = 0; i < count; ++i) words[i] = Element::encode(x[i] * multiplier[i]);
  bytes_of_words(words, count, codes);
}

// `offset`: of the run's first element in the matrix.
template <class Element>
NC_EVERYWHERE void encode_run(const float* __restrict x, const float* __restrict multiplier,
                              int count, const Stochastic& rounding, int64_t offset,
                              uint8_t* __restrict codes) {
  alignas(64) uint32_t random[kLongestRun + 4], words[kLongestRun];
  const uint64_t index = rounding.first + static_cast<uint64_t>(offset);
  const int skipped = static_cast<int>(index % 4);
  for (int i = 0; i < count + skipped; i += 4) {
    const PhiloxWords four = rounding.words(index / 4 + static_cast<uint64_t>(i / 4));
    for (int j = 0; j < 4; ++j) random[i + j] = four.word[j];
  }
  for (int i = 0; i < count; ++i)
    words[i] = Element::encode(x[i] * multiplier[i], random[skipped + i]);
  bytes_of_words(words, count, codes);
}

}  // namespace narrowcast::inline NC_VARIANT
