// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): four random
// words that are a function of a counter and a key, so that no order of work can change them.
#pragma once

#include <cstdint>

#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

struct PhiloxWords {
  uint32_t word[4];
};

NC_EVERYWHERE constexpr PhiloxWords philox(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiplier0 = 0xd2511f53, kMultiplier1 = 0xcd9e8d57;
  constexpr uint32_t kWeyl0 = 0x9e3779b9, kWeyl1 = 0xbb67ae85;
  uint32_t a = counter.word[0], b = counter.word[1], c = counter.word[2], d = counter.word[3];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = kMultiplier0 * a, second = kMultiplier1 * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ key0;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ key1;
    d = static_cast<uint32_t>(first);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {{a, b, c, d}};
}

}  // namespace narrowcast::inline NC_VARIANT
