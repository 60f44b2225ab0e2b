// Golden bytes: a second, plain opinion on what a format's bytes are. Straight loops over blocks,
// written from docs/numerics.md and not from the tiles; shared with them are only the codes of
// single numbers and the positions of the geometry.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/plan.hpp"
#include "runtime/golden/matrix.hpp"

namespace narrowcast::codegen {

struct GoldenBytes {
  golden::Matrix matrix;
  // In the order of nc_buffer. Scales without their padding, which is zero; fp32 scales as four
  // bytes, low byte first.
  std::array<std::vector<uint8_t>, NC_BUFFER_COUNT> buffers;
  float amax;                       // of the tensor
  std::array<uint64_t, 2> decoded;  // digests of both usages' decoded values
};

// One for each of golden::kMatrices.
std::vector<GoldenBytes> golden_bytes(const Plan& plan);

// Values, row by row, as a usage of the plan keeps them: quantized and decoded.
std::vector<float> golden_decoded(const Plan& plan, const nc_layout& usage, int64_t rows,
                                  const std::vector<float>& values);

// The bytes in hexadecimal, one buffer a paragraph: what tests/codegen/golden/<format>.txt keeps
// for ever.
std::string golden_text(const Plan& plan);

std::string hexadecimal(const std::vector<uint8_t>& bytes);
std::string hexadecimal(uint64_t value, int digits);

}  // namespace narrowcast::codegen
