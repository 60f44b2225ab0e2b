// Little-endian strings of up to 8 bytes, in the widest words whose whole multiples they lie at:
// the codes of a run of a thread's columns or rows.
#pragma once

#include <cstdint>

#include "runtime/machine.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kBytes>
__device__ __forceinline__ uint64_t load_string(const uint8_t* source) {
  if constexpr (kBytes == 8) return *reinterpret_cast<const uint64_t*>(source);
  if constexpr (kBytes == 4) return *reinterpret_cast<const uint32_t*>(source);
  if constexpr (kBytes == 2) return *reinterpret_cast<const uint16_t*>(source);
  uint64_t string = 0;
  if constexpr (kBytes == 6) {
#pragma unroll
    for (int i = 0; i < 3; ++i)
      string |= static_cast<uint64_t>(reinterpret_cast<const uint16_t*>(source)[i]) << 16 * i;
  }
  if constexpr (kBytes == 3) {
#pragma unroll
    for (int i = 0; i < 3; ++i) string |= static_cast<uint64_t>(source[i]) << 8 * i;
  }
  return string;
}

template <int kBytes>
__device__ __forceinline__ void store_string(uint8_t* target, uint64_t string) {
  if constexpr (kBytes == 8) *reinterpret_cast<uint64_t*>(target) = string;
  if constexpr (kBytes == 4) *reinterpret_cast<uint32_t*>(target) = static_cast<uint32_t>(string);
  if constexpr (kBytes == 6) {
#pragma unroll
    for (int i = 0; i < 3; ++i)
      reinterpret_cast<uint16_t*>(target)[i] = static_cast<uint16_t>(string >> 16 * i);
  }
  static_assert(kBytes == 4 || kBytes == 6 || kBytes == 8);
}

// At the edge of the matrix, byte by byte; `is_inside(i)`: whether the string's element i is.
template <int kBits, int kBytes, class Inside>
__device__ __forceinline__ uint64_t load_string_at_edge(const uint8_t* source,
                                                        const Inside& is_inside) {
  uint64_t string = 0;
#pragma unroll
  for (int b = 0; b < kBytes; ++b) {
    if (is_inside(b * 8 / kBits)) string |= static_cast<uint64_t>(source[b]) << 8 * b;
  }
  return string;
}

template <int kBits, int kBytes, class Inside>
__device__ __forceinline__ void store_string_at_edge(uint8_t* target, uint64_t string,
                                                     const Inside& is_inside) {
#pragma unroll
  for (int b = 0; b < kBytes; ++b) {
    if (is_inside(b * 8 / kBits)) target[b] = static_cast<uint8_t>(string >> 8 * b);
  }
}

}  // namespace narrowcast::inline NC_VARIANT
