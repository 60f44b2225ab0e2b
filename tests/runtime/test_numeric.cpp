// Every code of every number type, both ways, against the definition: the nearest value of the
// list, ties to the even code.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

// The finite codes of positive values, in order of value. Index = magnitude code, so an even index
// is an even code.
template <class Element>
std::vector<double> positive_values() {
  std::vector<double> values;
  for (uint32_t code = 0; code <= Element::kMaxCode; ++code)
    values.push_back(Element::decode(code));
  return values;
}

// The definition, in double precision, where every midpoint is exact.
template <class Element>
uint32_t nearest(const std::vector<double>& values, float x) {
  if (std::isnan(x)) return Element::kNanCode;
  const double magnitude = std::fabs(static_cast<double>(x));
  uint32_t best = 0;
  for (uint32_t code = 0; code < values.size(); ++code) {
    const double distance = std::fabs(values[code] - magnitude),
                 least = std::fabs(values[best] - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  if (magnitude >= values.back()) best = Element::kMaxCode;
  return best | (std::signbit(x) ? Element::kSignBit : 0);
}

std::vector<float> dense_inputs() {
  std::vector<float> inputs;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    inputs.push_back(widen(Bf16{static_cast<uint16_t>(bits)}));
    inputs.push_back(widen(F16{static_cast<uint16_t>(bits)}));
  }
  for (const Kind kind : kKinds) {
    for (const float value : draw(kind, 20000, 3)) inputs.push_back(value);
  }
  return inputs;
}

template <class Element>
void check_element() {
  const std::vector<double> values = positive_values<Element>();
  for (size_t i = 1; i < values.size(); ++i) CHECK(values[i] > values[i - 1]);
  for (uint32_t code = 0; code <= Element::kMaxCode; ++code) {
    CHECK(Element::encode(Element::decode(code)) == code);
    CHECK(Element::encode(-Element::decode(code)) == (code | Element::kSignBit));
  }
  std::vector<float> inputs = dense_inputs();
  for (size_t i = 1; i < values.size(); ++i) {
    const float midpoint = static_cast<float>((values[i] + values[i - 1]) / 2);
    for (const float x :
         {midpoint, std::nextafter(midpoint, 0.0f), std::nextafter(midpoint, 1e9f)}) {
      inputs.push_back(x);
      inputs.push_back(-x);
    }
  }
  int wrong = 0;
  for (const float x : inputs) wrong += Element::encode(x) != nearest<Element>(values, x);
  CHECK(wrong == 0);
  CHECK(Element::encode(INFINITY) == Element::kMaxCode);
  CHECK(Element::encode(-INFINITY) == (Element::kMaxCode | Element::kSignBit));
  CHECK(Element::encode(-NAN) == Element::kNanCode);
}

TEST_CASE("floating-point elements encode to the nearest value") {
  check_element<E4M3>();
  check_element<E5M2>();
  check_element<E2M1>();
  check_element<E2M3>();
  check_element<E3M2>();
}

TEST_CASE("what is not finite decodes as the types say") {
  CHECK(std::isnan(E4M3::decode(0x7f)));
  CHECK(std::isnan(E4M3::decode(0xff)));
  CHECK(E5M2::decode(0x7c) == INFINITY);
  CHECK(E5M2::decode(0xfc) == -INFINITY);
  for (uint32_t code : {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff}) CHECK(std::isnan(E5M2::decode(code)));
  CHECK(E2M1::decode(0xf) == -6);
}

template <class Element>
void check_int8(double unit) {
  for (int n = -127; n <= 127; ++n) {
    const uint32_t code = static_cast<uint8_t>(n);
    CHECK(Element::decode(code) == n * unit);
    CHECK(Element::encode(static_cast<float>(n * unit)) == code);
    // Halfway to the next integer: the even one.
    const int even = n % 2 == 0 ? n : n + 1;
    if (n < 127)
      CHECK(Element::encode(static_cast<float>((n + 0.5) * unit)) == static_cast<uint8_t>(even));
  }
  CHECK(Element::encode(1e9f) == 127);
  CHECK(Element::encode(-INFINITY) == static_cast<uint8_t>(-127));
  CHECK(Element::encode(NAN) == 127);
  CHECK(Element::encode(-0.0f) == 0);
}

TEST_CASE("int8 elements round to the nearest integer, in their unit") {
  check_int8<Integer8>(1.0);
  check_int8<MxInteger8>(1.0 / 64);
}

TEST_CASE("e8m0 is a power of two") {
  for (int code = 0; code <= 254; ++code) {
    CHECK(E8M0::decode(code) == std::ldexp(1.0f, code - 127));
    CHECK(E8M0::reciprocal(code) == std::ldexp(1.0f, 127 - code));
  }
  CHECK(std::isnan(E8M0::decode(255)));
}

TEST_CASE("bf16 and fp16 widen exactly and narrow to the nearest") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 b{static_cast<uint16_t>(bits)};
    const F16 h{static_cast<uint16_t>(bits)};
    if (!std::isnan(widen(b))) CHECK(narrow<Bf16>(widen(b)).bits == bits);
    if (!std::isnan(widen(h))) CHECK(narrow<F16>(widen(h)).bits == bits);
  }
  CHECK(widen(F16{0x0001}) == 0x1p-24f);
  CHECK(widen(F16{0x7bff}) == 65504);
  CHECK(narrow<F16>(65519.996f).bits == 0x7bff);
  CHECK(narrow<F16>(65520).bits == 0x7c00);
  CHECK(narrow<F16>(0x1p-25f).bits == 0);    // a tie, to even
  CHECK(narrow<F16>(0x1.8p-24f).bits == 2);  // a tie, to even
  CHECK(narrow<Bf16>(float_of(0x3f808000)).bits == 0x3f80);
  CHECK(narrow<Bf16>(float_of(0x3f818000)).bits == 0x3f82);
  CHECK(narrow<Bf16>(kFloatMax).bits == 0x7f80);
  CHECK(std::isnan(widen(narrow<Bf16>(float_of(0x7f800001)))));
}

// The table of docs/numerics.md, "Amax and scales".
TEST_CASE("scale bytes for given amaxes") {
  const std::vector<float> amaxes = {
      0,          0x1p-149f, 0x1p-127f, 1e-30f, 1,   1.75f,
      1.9921875f, 6,         7,         7.5f,   448, float_of(bits_of(448.0f) + 1),
      kFloatMax,  INFINITY};
  using Codes = std::vector<int>;
  const auto codes = [&](auto rule) {
    Codes result;
    for (float amax : amaxes) result.push_back(rule(amax).stored);
    return result;
  };
  CHECK(codes(Rceil<E8M0, E4M3>{}) ==
        Codes{0, 0, 0, 19, 119, 119, 120, 121, 121, 122, 127, 128, 247, 254});
  CHECK(codes(Rceil<E8M0, E5M2>{}) ==
        Codes{0, 0, 0, 12, 112, 112, 113, 114, 114, 115, 120, 121, 240, 254});
  CHECK(codes(Rceil<E8M0, E2M3>{}) ==
        Codes{0, 0, 0, 25, 125, 125, 126, 127, 127, 127, 133, 133, 253, 254});
  CHECK(codes(Rceil<E8M0, E3M2>{}) ==
        Codes{0, 0, 0, 23, 123, 123, 124, 125, 125, 126, 131, 132, 251, 254});
  CHECK(codes(Even<E8M0, E2M1>{}) ==
        Codes{0, 0, 0, 25, 125, 126, 126, 127, 128, 128, 134, 134, 253, 253});
  CHECK(codes(Floor<E8M0, E2M1>{}) ==
        Codes{0, 0, 0, 25, 125, 125, 125, 127, 127, 127, 133, 133, 252, 253});
  CHECK(codes(Rceil<E8M0, E2M1>{}) ==
        Codes{0, 0, 0, 25, 125, 126, 126, 127, 128, 128, 134, 134, 253, 254});
  CHECK(codes(Floor<E8M0, MxInteger8>{}) ==
        Codes{0, 0, 0, 27, 127, 127, 127, 129, 129, 129, 135, 135, 254, 254});
}

// e = the least of 0..254 with 2^(e - 127) >= fl(a / max), and 254 if there is none.
template <class Element>
void check_rceil(const std::vector<float>& amaxes) {
  int wrong = 0;
  for (const float amax : amaxes) {
    const double ratio = static_cast<float>(amax / Element::kMax);
    int code = 0;
    while (code < 254 && std::ldexp(1.0, code - 127) < ratio) ++code;
    const Scale<uint8_t> scale = Rceil<E8M0, Element>{}(amax);
    wrong +=
        scale.stored != code || scale.multiplier != E8M0::reciprocal(static_cast<uint32_t>(code));
  }
  CHECK(wrong == 0);
}

TEST_CASE("rceil to e8m0 is the least sufficient power of two") {
  std::vector<float> amaxes;
  for (int exponent = -149; exponent <= 127; ++exponent) {
    for (const float max : {448.0f, 57344.0f, 6.0f, 7.5f, 28.0f, 1.984375f, 1.0f}) {
      const float threshold = static_cast<float>(std::ldexp(static_cast<double>(max), exponent));
      if (std::isinf(threshold)) continue;
      for (int step = -2; step <= 2; ++step) {
        const float x = float_of(bits_of(threshold) + static_cast<uint32_t>(step));
        if (x >= 0 && !std::isnan(x)) amaxes.push_back(x);
      }
    }
  }
  for (const float x : draw(Kind::kBits, 100000, 11)) {
    if (!std::isnan(x)) amaxes.push_back(std::fabs(x));
  }
  check_rceil<E4M3>(amaxes);
  check_rceil<E5M2>(amaxes);
  check_rceil<E2M1>(amaxes);
  check_rceil<E2M3>(amaxes);
  check_rceil<E3M2>(amaxes);
  check_rceil<MxInteger8>(amaxes);
}

TEST_CASE("fp32 scales at the edges") {
  CHECK(Exact<F32, E4M3>{}(0).multiplier == 1);
  CHECK(Exact<F32, E4M3>{}(INFINITY).multiplier == 1);
  CHECK(Exact<F32, E4M3>{}(0x1p-149f).multiplier == kFloatMax);
  CHECK(Exact<F32, E4M3>{}(0x1p-149f).stored == 1.0f / kFloatMax);
  CHECK(Rceil<F32, E4M3>{}(0x1p-149f).multiplier == 0x1p127f);
  CHECK(Rceil<F32, E4M3>{}(0x1p-149f).stored == 0x1p-127f);
  CHECK(Rceil<F32, E4M3>{}(kFloatMax).multiplier == 0x1p-120f);
  CHECK(Exact<F32, E4M3>{}(448).multiplier == 1);
}

TEST_CASE("two levels: the example of docs/numerics.md, and the edges") {
  const NearestEven<E4M3Scale, E2M1> rule(6.0f);
  CHECK(rule(6.0f).stored == 0x7e);
  CHECK(rule(6.0f).multiplier == 1);
  CHECK(rule(0.02f).stored == 0x3c);
  CHECK(bits_of(rule(0.02f).multiplier) == bits_of(298.66666f));
  CHECK(rule(0.0f).stored == 0);
  CHECK(rule(0.0f).multiplier == kFloatMax);
  const NearestEven<E4M3Scale, E2M1> infinite(INFINITY);
  CHECK(infinite.encode_scale == 1);
  CHECK(infinite(INFINITY).stored == 0x7e);
  CHECK(bits_of(infinite(INFINITY).multiplier) == bits_of(1.0f / 448.0f));
  CHECK((NearestEven<E4M3Scale, E2M1>(0.0f).encode_scale) == 1);
}

}  // namespace
}  // namespace narrowcast::test
