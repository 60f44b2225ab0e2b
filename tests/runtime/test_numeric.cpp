// Every code of every number type, both ways, and the tables of docs/numerics.md. What a float
// becomes is in test_claims.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "runtime/numeric/narrow.hpp"
#include "runtime/numeric/number_types.hpp"
#include "runtime/numeric/split_float.hpp"
#include "tests/support/definitions.hpp"

namespace narrowcast::test {
namespace {

// Every code decodes to what its sign, exponent and mantissa spell, and encodes back. Codes beyond
// the last finite one are NaN, but for an infinity.
template <class Element>
void check_codes(const Type& type) {
  const uint32_t sign = 1u << (type.bits() - 1);
  REQUIRE(Element::kBits == type.bits());
  for (uint32_t magnitude = 0; magnitude < sign; ++magnitude) {
    CAPTURE(magnitude);
    const float plus = Element::decode(magnitude), minus = Element::decode(magnitude | sign);
    if (magnitude <= type.last) {
      CHECK(plus == type.value(magnitude));
      CHECK(minus == -type.value(magnitude));
      CHECK(std::signbit(minus));
      CHECK(Element::encode(plus) == magnitude);
      CHECK(Element::encode(minus) == (magnitude | sign));
    } else if (type.infinity && magnitude == type.last + 1) {
      CHECK(plus == INFINITY);
      CHECK(minus == -INFINITY);
    } else {
      CHECK(std::isnan(plus));
      CHECK(std::isnan(minus));
    }
  }
  CHECK(Element::encode(INFINITY) == type.last);
  CHECK(Element::encode(-INFINITY) == (type.last | sign));
  CHECK(Element::encode(NAN) == type.nan_code);
  CHECK(Element::encode(-NAN) == type.nan_code);
}

template <class Element>
void check_codes(const Integers& type) {
  for (int n = -128; n <= 127; ++n) {
    const uint32_t code = static_cast<uint8_t>(n);
    CHECK(Element::decode(code) == n * type.unit);
    CHECK(Element::encode(Element::decode(code)) == (n == -128 ? 0x81 : code));  // never written
  }
}

TEST_CASE("a bfloat16 and its residual are a number of its sign, which splits into them") {
  int64_t wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    const float widened = widen(value);
    for (int residual = -128; residual < 128; ++residual) {
      // A residual of 0 is never below it, one of infinity never above, and NaN has none.
      const bool is_own = residual == 0 || (widened != 0 && std::isfinite(widened)) ||
                          (widened == 0 && residual > 0) || (std::isinf(widened) && residual < 0);
      const float joined = join({value, static_cast<int8_t>(residual)});
      const SplitFloat again = split(joined);
      const bool is_pair = again.value.bits == value.bits && again.residual == residual;
      if (is_own) wrong += is_nan(widened) ? !is_nan(joined) : !is_pair;
      if (!is_nan(widened)) wrong += std::signbit(joined) != (bits >= 0x8000);
      if (std::isfinite(widened)) wrong += !std::isfinite(joined);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("every code of the elements, both ways") {
#define NC_CHECK(word, Plain, BesidePowerOfTwo, header) \
  check_codes<Plain>(k##Plain);                         \
  check_codes<BesidePowerOfTwo>(k##BesidePowerOfTwo);
  NC_ELEMENT_TYPES(NC_CHECK)
#undef NC_CHECK
}

TEST_CASE("the table of number types") {
  const auto row = [](const Type& t, double max, double normal, double subnormal) {
    CHECK(t.max() == max);
    CHECK(t.value(1u << t.mantissa_bits) == normal);
    CHECK(t.value(1) == subnormal);
  };
  row(kE4M3, 448, 0x1p-6, 0x1p-9);
  row(kE5M2, 57344, 0x1p-14, 0x1p-16);
  row(kE2M1, 6, 1, 0.5);
  row(kE2M3, 7.5, 1, 0.125);
  row(kE3M2, 28, 0.25, 0.0625);
}

void check_scales(E8M0) {
  for (int code = 0; code <= 254; ++code) {
    const uint32_t c = static_cast<uint32_t>(code);
    CHECK(E8M0::decode(c) == std::ldexp(1.0f, code - 127));
    CHECK(E8M0::reciprocal(c) == std::ldexp(1.0f, 127 - code));
  }
  CHECK(std::isnan(E8M0::decode(255)));
}

void check_scales(E4M3Scale) {
  for (uint32_t code = 0; code <= 0x7e; ++code) CHECK(E4M3Scale::decode(code) == kE4M3.value(code));
  CHECK(std::isnan(E4M3Scale::decode(0x7f)));
}

void check_scales(F32) {
  for (const float stored : {1.0f, 0x1p-149f, kFloatMax}) CHECK(F32::decode(stored) == stored);
}

TEST_CASE("every code of the scale types") {
#define NC_CHECK(word, Type, dtype) check_scales(Type{});
  NC_SCALE_TYPES(NC_CHECK)
#undef NC_CHECK
}

TEST_CASE("a stored scale is as wide as what torch calls it") {
  for (const ScaleRow& row : kScaleRows) CHECK(row.bytes == (row.dtype == "float32" ? 4 : 1));
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
