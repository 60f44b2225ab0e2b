// Codes of elements that have few binades and no NaN (e2m1, e2m3), rounded to nearest and packed
// densely, as strings from the start: no code has a byte of its own, so none is moved.
#pragma once

#include "runtime/numeric/small_float.hpp"
#include "runtime/tile/cuda_blocks.cuh"

namespace narrowcast::inline NC_VARIANT {

template <class Element>
concept HasLines = requires {
  Element::kMantissaBits;
  requires Element::kMaxCode == Element::kMagnitude;  // no NaN
  requires Element::kMaxCode >> Element::kMantissaBits <= 3;
};

// As a function of the magnitude, the code is straight within each binade and bends down between
// them, so it is the least of the straight lines. Adding 2^23 leaves a line's nearest integer, ties
// to even, in the low bits, and the least stays the least. Above the code stands what all words
// have alike.
template <class Element>
__device__ __forceinline__ uint32_t least_line(float x) {
  constexpr int kBinades = static_cast<int>(Element::kMaxCode >> Element::kMantissaBits);
  constexpr float kFirstSlope = power_of_two(Element::kBias - 1 + Element::kMantissaBits);
  const float magnitude = at_most(fabsf(x), Element::kMax);
  uint32_t least = ~0u;
#pragma unroll
  for (int binade = 0; binade < kBinades; ++binade) {
    const float start = 8388608.0f + static_cast<float>(binade << Element::kMantissaBits);
    const float slope = kFirstSlope * power_of_two(-binade);
    least = smaller(least, bits_of(fused_multiply_add(magnitude, slope, start)));
  }
  return least;
}

// Four codes, the last one pushed lowest. Above them is junk.
//
// A NaN's code has no sign. Here its sign is plus already: what is encoded is a product, and the
// GPU's products that are NaN are all 0x7fffffff (PTX ISA, "Floating point instructions").
template <class Element>
struct LineString {
  static constexpr int kBits = Element::kBits;
  uint32_t codes = 0, signs = 0;

  __device__ __forceinline__ void push(float product) {
    codes = (codes << kBits) + least_line<Element>(product);
    signs = __funnelshift_l(bits_of(product), signs, kBits);
  }

  __device__ __forceinline__ uint32_t packed() const {
    constexpr uint32_t kMagnitudes =
        Element::kMagnitude * ((1u << 3 * kBits) + (1u << 2 * kBits) + (1u << kBits) + 1);
    return (codes & kMagnitudes) | (signs & ~kMagnitudes);
  }
};

// A thread's codes, as CudaCodes has them; what nobody asks for the compiler leaves out.
template <class Element>
struct LineCodes {
  LineString<Element> row[kThreadRows], column[2][kThreadColumns];

  // `product(r, c)`: what is encoded.
  template <class Product>
  __device__ __forceinline__ explicit LineCodes(const Product& product) {
#pragma unroll
    for (int r = kThreadRows - 1; r >= 0; --r) {
#pragma unroll
      for (int c = kThreadColumns - 1; c >= 0; --c) {
        row[r].push(product(r, c));
        column[r / 4][c].push(product(r, c));
      }
    }
  }

  template <int kBits>
  __device__ __forceinline__ uint32_t row_string(int r) const {
    static_assert(kBits == Element::kBits);
    return row[r].packed();
  }

  template <int kBits>
  __device__ __forceinline__ void column_strings(uint64_t (&columns)[kThreadColumns]) const {
    static_assert(kBits == Element::kBits);
    constexpr uint32_t kString = (1u << 4 * kBits) - 1;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      columns[c] = (column[0][c].packed() & kString) | static_cast<uint64_t>(column[1][c].packed())
                                                           << 4 * kBits;
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
