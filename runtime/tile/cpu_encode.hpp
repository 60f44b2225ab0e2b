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

// The random words of a run, whose first element lies at `offset` in the matrix.
struct RandomRun {
  alignas(64) uint32_t words[kLongestRun + 4];
  int skipped;

  NC_EVERYWHERE RandomRun(const Stochastic& rounding, int64_t offset, int count) {
    const uint64_t index = rounding.first + static_cast<uint64_t>(offset);
    skipped = static_cast<int>(index % 4);
    for (int i = 0; i < count + skipped; i += 4) {
      const PhiloxWords four = rounding.words(index / 4 + static_cast<uint64_t>(i / 4));
      for (int j = 0; j < 4; ++j) words[i + j] = four.word[j];
    }
  }

  NC_EVERYWHERE const uint32_t* begin() const { return words + skipped; }
};

// `offset`: of the run's first element in the matrix.
template <class Element>
NC_EVERYWHERE void encode_run(const float* __restrict x, const float* __restrict multiplier,
                              int count, const Stochastic& rounding, int64_t offset,
                              uint8_t* __restrict codes) {
  alignas(64) uint32_t words[kLongestRun];
  const RandomRun run(rounding, offset, count);
  const uint32_t* __restrict random = run.begin();
  for (int i = 0; i < count; ++i) words[i] = Element::encode(x[i] * multiplier[i], random[i]);
  bytes_of_words(words, count, codes);
}

}  // namespace narrowcast::inline NC_VARIANT
