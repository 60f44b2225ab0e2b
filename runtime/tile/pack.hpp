// Codes of fewer than eight bits, packed along a run: a little-endian bit string. Runs start at a
// whole byte, and hold whole groups (2 codes of 4 bits, 4 codes of 6 bits) unless the matrix ends
// there, which `holds` makes impossible. An empty run has perhaps no memory, which memcpy may not
// be given.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kBits>
NC_EVERYWHERE void pack(const uint8_t* __restrict codes, int count, uint8_t* __restrict bytes) {
  static_assert(kBits == 4 || kBits == 6 || kBits == 8);
  if constexpr (kBits == 8) {
    if (count > 0) std::memcpy(bytes, codes, static_cast<size_t>(count));
  } else if constexpr (kBits == 4) {
    for (int i = 0; i < count / 2; ++i)
      bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  } else {
    for (int i = 0; i < count / 4; ++i) {
      const uint8_t* c = codes + 4 * i;
      bytes[3 * i] = static_cast<uint8_t>(c[0] | c[1] << 6);
      bytes[3 * i + 1] = static_cast<uint8_t>(c[1] >> 2 | c[2] << 4);
      bytes[3 * i + 2] = static_cast<uint8_t>(c[2] >> 4 | c[3] << 2);
    }
  }
}

template <int kBits>
NC_EVERYWHERE void unpack(const uint8_t* __restrict bytes, int count, uint8_t* __restrict codes) {
  static_assert(kBits == 4 || kBits == 6 || kBits == 8);
  if constexpr (kBits == 8) {
    if (count > 0) std::memcpy(codes, bytes, static_cast<size_t>(count));
  } else if constexpr (kBits == 4) {
    for (int i = 0; i < count / 2; ++i) {
      codes[2 * i] = bytes[i] & 15;
      codes[2 * i + 1] = bytes[i] >> 4;
    }
  } else {
    for (int i = 0; i < count / 4; ++i) {
      const uint8_t* b = bytes + 3 * i;
      codes[4 * i] = b[0] & 63;
      codes[4 * i + 1] = static_cast<uint8_t>((b[0] >> 6 | b[1] << 2) & 63);
      codes[4 * i + 2] = static_cast<uint8_t>((b[1] >> 4 | b[2] << 4) & 63);
      codes[4 * i + 3] = b[2] >> 2;
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
