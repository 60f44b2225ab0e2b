// The golden cast against the values that docs/numerics.md gives by hand.
#include <bit>
#include <cmath>
#include <limits>

#include "codegen/golden.hpp"
#include "codegen/golden_scale.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct ScaleBytes {
  const char* format;
  uint32_t stored[14];
};

const float kAmaxes[14] = {0.0f,     0x1p-149f, 0x1p-127f,  1e-30f,
                           1.0f,     1.75f,     1.9921875f, 6.0f,
                           7.0f,     7.5f,      448.0f,     std::nextafter(448.0f, kInfinity),
                           kLargest, kInfinity};

constexpr ScaleBytes kScaleBytes[] = {
    {"mxfp8_e4m3", {0, 0, 0, 19, 119, 119, 120, 121, 121, 122, 127, 128, 247, 254}},
    {"mxfp8_e5m2", {0, 0, 0, 12, 112, 112, 113, 114, 114, 115, 120, 121, 240, 254}},
    {"mxfp6_e2m3", {0, 0, 0, 25, 125, 125, 126, 127, 127, 127, 133, 133, 253, 254}},
    {"mxfp6_e3m2", {0, 0, 0, 23, 123, 123, 124, 125, 125, 126, 131, 132, 251, 254}},
    {"mxfp4", {0, 0, 0, 25, 125, 126, 126, 127, 128, 128, 134, 134, 253, 253}},
    {"mxint8", {0, 0, 0, 27, 127, 127, 127, 129, 129, 129, 135, 135, 254, 254}},
};

TEST_CASE("scale bytes of given amaxes") {
  for (const ScaleBytes& row : kScaleBytes) {
    const Plan plan = plan_of(row.format);
    for (size_t i = 0; i < std::size(kAmaxes); ++i) {
      CAPTURE(std::string(row.format));
      CAPTURE(kAmaxes[i]);
      const GoldenScale scale = golden_scale(plan, kAmaxes[i], 0);
      CHECK(scale.stored == row.stored[i]);
      CHECK(scale.multiplier * golden_decoder(plan, scale.stored, 0) == 1.0f);
    }
  }
}

TEST_CASE("fp32 scales at the ends of the range") {
  const Plan exact = plan_of("fp8_e4m3"), power = plan_of("fp8_block128"),
             quotient = plan_of("fp8_block128_f32");
  for (const Plan* plan : {&exact, &power, &quotient}) {
    for (const float amax : {0.0f, kInfinity}) {
      CHECK(golden_scale(*plan, amax, amax).multiplier == 1.0f);
      CHECK(golden_scale(*plan, amax, amax).stored == std::bit_cast<uint32_t>(1.0f));
    }
  }
  CHECK(golden_scale(exact, 0x1p-149f, 0).multiplier == kLargest);
  CHECK(golden_scale(exact, 448.0f, 0).multiplier == 1.0f);
  CHECK(golden_scale(power, 0x1p-149f, 0).multiplier == 0x1p127f);
  CHECK(golden_scale(power, kLargest, 0).multiplier == 0x1p-120f);
  CHECK(golden_scale(power, 3.0f, 0).multiplier == 128.0f);  // 448 / 3 is 149.33
  const auto quotient_of = [&](float amax) {
    return std::bit_cast<float>(golden_scale(quotient, amax, 0).stored);
  };
  CHECK(golden_scale(quotient, 0x1p-149f, 0).multiplier == kLargest);
  CHECK(quotient_of(0x1p-149f) == 0x1p-128f);
  CHECK(quotient_of(448 * 0x1p-128f) == 0x1p-128f);
  CHECK(quotient_of(448 * 0x1.000008p-128f) == 0x1.000008p-128f);  // the next subnormal
  CHECK(golden_scale(quotient, 448 * 0x1.000008p-128f, 0).multiplier == 0x1.fffffp127f);
  CHECK(quotient_of(448.0f) == 1.0f);
  CHECK(quotient_of(3.0f) == 0x1.b6db6ep-8f);  // 3 / 448, rounded to nearest
  CHECK(quotient_of(kLargest) == kLargest / 448);
}

TEST_CASE("two levels") {
  const Plan plan = plan_of("nvfp4_1d");
  CHECK(golden_scale(plan, 6.0f, 6.0f).stored == 0x7e);
  CHECK(golden_scale(plan, 6.0f, 6.0f).multiplier == 1.0f);
  CHECK(golden_scale(plan, 0.02f, 6.0f).stored == 0x3c);
  CHECK(golden_scale(plan, 0.02f, 6.0f).multiplier == doctest::Approx(298.66666).epsilon(1e-7));
  CHECK(golden_scale(plan, 0.0f, 6.0f).stored == 0);
  CHECK(golden_scale(plan, 0.0f, 6.0f).multiplier == kLargest);
  CHECK(golden_scale(plan, kInfinity, kInfinity).stored == 0x7e);
}

std::vector<uint8_t> bytes_of(const std::string& name, size_t matrix, nc_buffer buffer) {
  return golden_bytes(plan_of(name))[matrix].buffers[buffer];
}

TEST_CASE("equal usages hold equal bytes, and transposing them changes their order alone") {
  CHECK(bytes_of("mxfp8_2d", 0, NC_ROWWISE_DATA) == bytes_of("mxfp8_2d", 0, NC_COLUMNWISE_DATA));
  std::vector<uint8_t> rowwise = bytes_of("int8_block32", 0, NC_ROWWISE_DATA);
  std::vector<uint8_t> columnwise = bytes_of("int8_block32", 0, NC_COLUMNWISE_DATA);
  CHECK(rowwise != columnwise);
  std::sort(rowwise.begin(), rowwise.end());
  std::sort(columnwise.begin(), columnwise.end());
  CHECK(rowwise == columnwise);
}

TEST_CASE("the golden input meets the corners of the number line") {
  int zeros = 0, negative_zeros = 0, nans = 0, subnormals = 0;
  for (const float x : golden::values(golden::kMatrices[0])) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    zeros += bits == 0;
    negative_zeros += bits == 0x80000000u;
    nans += x != x;
    subnormals += x != 0 && std::fabs(x) < 0x1p-126f;
    CHECK(std::fabs(x) != kInfinity);
  }
  CHECK(zeros > 10);
  CHECK(negative_zeros > 10);
  CHECK(nans > 30);
  CHECK(subnormals > 30);
  int infinities = 0;
  for (const float x : golden::values(golden::kMatrices[1]))
    infinities += std::fabs(x) == kInfinity;
  CHECK(infinities > 0);
}

// How many elements of the golden input lie exactly between two codes, under the scale of their
// rowwise block.
int ties(const Plan& plan) {
  const ElementType& element = type_of(plan.element, plan.scale);
  const golden::Matrix& matrix = golden::kMatrices[0];
  int count = 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const int64_t first = column / plan.rowwise.block_columns * plan.rowwise.block_columns;
      float amax = 0;
      for (int64_t c = first; c < std::min(first + plan.rowwise.block_columns, matrix.columns);
           ++c) {
        amax = std::fmax(amax, std::fabs(golden::value(matrix, row, c)));
      }
      const float x =
          golden::value(matrix, row, column) * golden_scale(plan, amax, amax).multiplier;
      if (!(std::fabs(x) > 0 && std::fabs(x) < element.max)) continue;
      count += element.encode(std::nextafter(x, 0.0f)) != element.encode(std::nextafter(x, 2 * x));
    }
  }
  return count;
}

TEST_CASE("the golden input meets ties") {
  for (const char* name :
       {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxint8"}) {
    CAPTURE(std::string(name));
    CHECK(ties(plan_of(name)) > 10);
  }
}

TEST_CASE("frozen bytes are those of the specs") {
  for (const fs::path& path : files(kSource / "spec", ".toml")) {
    const Plan plan = plan_of(Source{path.string(), text_of(path)});
    const fs::path frozen = kSource / "tests/codegen/golden" / (plan.name + ".txt");
    CHECK_MESSAGE(text_of(frozen) == golden_text(plan), frozen.string());
  }
}

TEST_CASE("hexadecimal") {
  CHECK(hexadecimal(0xabu, 4) == "00ab");
  CHECK(hexadecimal(std::vector<uint8_t>{0, 255, 16}) == "00ff10");
}

}  // namespace
}  // namespace narrowcast::codegen::test
