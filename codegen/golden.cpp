#include "codegen/golden.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codegen/golden_scale.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

// The matrix with what the cast needs beside it.
struct Input {
  Extent extent;
  std::vector<float> values;
  float tensor_amax;

  float at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * extent.columns + column)];
  }
};

// The largest magnitude in a box; NaN is dropped, and what lies outside the matrix is not there.
float amax_of(const Input& input, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  float amax = 0;
  for (int64_t r = row; r < std::min(row + rows, input.extent.rows); ++r) {
    for (int64_t c = column; c < std::min(column + columns, input.extent.columns); ++c) {
      const float magnitude = std::fabs(input.at(r, c));
      if (magnitude > amax) amax = magnitude;
    }
  }
  return amax;
}

// The scale of each block of a usage.
class BlockScales {
 public:
  BlockScales(const Plan& plan, const Layout& layout, const Input& input) {
    const bool whole = spans_tensor(layout);
    block_ = whole ? input.extent : Extent{layout.block_rows, layout.block_columns};
    across_ = whole ? 1 : ceil_div(input.extent.columns, block_.columns);
    const int64_t down = whole ? 1 : ceil_div(input.extent.rows, block_.rows);
    for (int64_t i = 0; i < down * across_; ++i) {
      const int64_t row = i / across_ * block_.rows, column = i % across_ * block_.columns;
      const float amax =
          whole ? input.tensor_amax : amax_of(input, row, column, block_.rows, block_.columns);
      scales_.push_back(golden_scale(plan, amax, input.tensor_amax));
    }
  }

  // Of the block that an element lies in.
  const GoldenScale& at(int64_t row, int64_t column) const {
    const int64_t block = row / block_.rows * across_ + column / block_.columns;
    return scales_[static_cast<size_t>(block)];
  }

 private:
  Extent block_;
  int64_t across_;
  std::vector<GoldenScale> scales_;
};

void put_code(std::vector<uint8_t>& data, BitPosition position, uint32_t code) {
  const uint32_t bits = code << position.shift;
  const auto byte = static_cast<size_t>(position.byte);
  data[byte] = static_cast<uint8_t>(data[byte] | (bits & 0xff));
  if (bits > 0xff) data[byte + 1] = static_cast<uint8_t>(data[byte + 1] | bits >> 8);
}

void put_scale(std::vector<uint8_t>& scales, int64_t index, int32_t bytes, uint32_t stored) {
  for (int32_t i = 0; i < bytes; ++i) {
    scales[static_cast<size_t>(index * bytes + i)] = static_cast<uint8_t>(stored >> 8 * i);
  }
}

struct UsageBytes {
  std::vector<uint8_t> data, scale;
  std::vector<float> decoded;
};

UsageBytes cast(const Plan& plan, const Layout& layout, const Input& input) {
  const ElementType& element = type_of(plan.element, plan.scale);
  const Extent data = data_shape(layout, input.extent), scales = scale_extent(layout, input.extent);
  UsageBytes bytes;
  bytes.data.resize(static_cast<size_t>(data.rows * data.columns));
  bytes.scale.resize(static_cast<size_t>(scales.rows * scales.columns * layout.scale_bytes));
  const BlockScales block_scales(plan, layout, input);
  std::vector<float> decoded;
  for (int64_t row = 0; row < input.extent.rows; ++row) {
    for (int64_t column = 0; column < input.extent.columns; ++column) {
      const GoldenScale& scale = block_scales.at(row, column);
      const uint32_t code = element.encode(input.at(row, column) * scale.multiplier);
      put_code(bytes.data, element_position(layout, input.extent, row, column), code);
      const Extent position = scale_position(layout, row, column);
      put_scale(bytes.scale, position.rows * scales.columns + position.columns, layout.scale_bytes,
                scale.stored);
      decoded.push_back(element.decode(code) *
                        golden_decoder(plan, scale.stored, input.tensor_amax));
    }
  }
  bytes.decoded = std::move(decoded);
  return bytes;
}

Input input_of(Extent extent, std::vector<float> values) {
  Input input{extent, std::move(values), 0};
  input.tensor_amax = amax_of(input, 0, 0, extent.rows, extent.columns);
  return input;
}

GoldenBytes bytes_of(const Plan& plan, const golden::Matrix& matrix) {
  const Input input = input_of({matrix.rows, matrix.columns}, golden::values(matrix));
  UsageBytes rowwise = cast(plan, plan.rowwise, input),
             columnwise = cast(plan, plan.columnwise, input);
  return {matrix,
          {std::move(rowwise.data), std::move(rowwise.scale), std::move(columnwise.data),
           std::move(columnwise.scale)},
          input.tensor_amax,
          {golden::digest(rowwise.decoded), golden::digest(columnwise.decoded)}};
}

constexpr const char* kBufferNames[NC_BUFFER_COUNT] = {"rowwise data", "rowwise scale",
                                                       "columnwise data", "columnwise scale"};

// Lines of 32 bytes.
std::string paragraph(const std::string& title, const std::vector<uint8_t>& bytes) {
  constexpr size_t kLine = 64;
  const std::string digits = hexadecimal(bytes);
  std::string text = title + "\n";
  for (size_t i = 0; i < digits.size(); i += kLine) text += digits.substr(i, kLine) + "\n";
  return text + "\n";
}

}  // namespace

std::vector<GoldenBytes> golden_bytes(const Plan& plan) {
  std::vector<GoldenBytes> all;
  for (const golden::Matrix& matrix : golden::kMatrices) all.push_back(bytes_of(plan, matrix));
  return all;
}

std::vector<float> golden_decoded(const Plan& plan, const nc_layout& usage, int64_t rows,
                                  const std::vector<float>& values) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  return cast(plan, usage, input_of({rows, columns}, values)).decoded;
}

std::string golden_text(const Plan& plan) {
  std::string text =
      "Golden bytes of " + plan.name + ". Written once; a change of meaning is a new format.\n\n";
  for (const GoldenBytes& golden : golden_bytes(plan)) {
    const std::string shape =
        std::to_string(golden.matrix.rows) + " x " + std::to_string(golden.matrix.columns);
    for (size_t i = 0; i < NC_BUFFER_COUNT; ++i) {
      text += paragraph(shape + ", " + kBufferNames[i], golden.buffers[i]);
    }
    text += shape + ", amax and digests of the decoded values\n" +
            hexadecimal(std::bit_cast<uint32_t>(golden.amax), 8) + " " +
            hexadecimal(golden.decoded[0], 16) + " " + hexadecimal(golden.decoded[1], 16) + "\n\n";
  }
  text.pop_back();
  return text;
}

std::string hexadecimal(uint64_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
    text += "0123456789abcdef"[value >> shift & 15];
  return text;
}

std::string hexadecimal(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += hexadecimal(byte, 2);
  return text;
}

}  // namespace narrowcast::codegen
