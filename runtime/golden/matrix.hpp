// The fixed matrices that golden bytes are made from. Whole-number arithmetic only, so that every
// compiler gives the same floats. Never changed: golden bytes that were written once would lose
// their meaning.
#pragma once

#include <cstdint>
#include <vector>

namespace narrowcast::golden {

// Ragged against every block size of 16 and more, and whole in every packing. Infinities stand in a
// matrix of their own: in a format with a tensor-wide scale a single one decides every byte.
struct Matrix {
  int64_t rows, columns;
  bool infinities;
};
inline constexpr Matrix kMatrices[] = {{36, 52, false}, {4, 36, true}};

inline float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Scrambles an index, so that neighbours have unlike values.
inline uint32_t scrambled(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// A 7-bit significand times a power of two that changes from one 16 x 16 neighbourhood to the next:
// under a power-of-two scale the elements meet many ties. Zeros of both signs, NaN of both signs,
// subnormals and single large values stand between them.
inline float value(const Matrix& matrix, int64_t row, int64_t column) {
  const uint32_t word = scrambled(static_cast<uint32_t>(row * matrix.columns + column + 1));
  const uint32_t sign = word & 0x80000000u;
  if (row == 17 || column == 40) return float_of_bits(sign);               // blocks of zeros
  if (row == 18 && column < 32) return float_of_bits(sign | 0x7fc00000u);  // blocks of NaN
  if (row == 19) return float_of_bits(sign | word >> 12);                  // blocks of subnormals
  if (row < 16 && column >= 48)
    return float_of_bits(sign | 0x20000000u | word >> 12);  // about 2^-63
  const uint32_t kind = word % 61;
  if (kind == 0) return float_of_bits(sign);
  if (kind == 1) return float_of_bits(sign | 0x7fc00001u);  // NaN
  if (kind == 2) return float_of_bits(sign | word >> 12);   // a subnormal
  if (kind == 3 && matrix.infinities) return float_of_bits(sign | 0x7f800000u);
  if (kind == 4 && matrix.infinities) return float_of_bits(sign | 0x7f7fffffu);  // the largest
  const int32_t significand = static_cast<int32_t>(word >> 8 & 0x7f) - 64;
  const int64_t exponent = (row / 16 * 5 + column / 16 * 3) % 13 - 9;
  return static_cast<float>(significand) *
         float_of_bits(static_cast<uint32_t>(exponent + 127) << 23);
}

inline std::vector<float> values(const Matrix& matrix) {
  std::vector<float> result;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column)
      result.push_back(value(matrix, row, column));
  }
  return result;
}

// One number for all decoded values, bit for bit, but one NaN like another (FNV-1a over 32-bit
// words).
inline uint64_t digest(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float x : values) {
    const uint32_t bits = x == x ? __builtin_bit_cast(uint32_t, x) : 0x7fc00000u;
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace narrowcast::golden
