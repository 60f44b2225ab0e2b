// What the library says of a single float, beside its definition: one list for the CPU and the GPU,
// for the ordinary tests and for `make exhaustive`.
#pragma once

#include <cstdio>
#include <string>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "tests/support/definitions.hpp"

namespace narrowcast::test {

// The library's side, as functions of a float for both machines.

template <class AnyElement>
struct Encoded {
  using Element = AnyElement;
  NC_EVERYWHERE uint64_t operator()(float x) const { return Element::encode(x); }
};

template <class Element>
struct Drawn {
  uint32_t random_word;
  NC_EVERYWHERE uint64_t operator()(float x) const { return Element::encode(x, random_word); }
};

template <class Rule>
struct Scaled {
  Rule rule;

  NC_EVERYWHERE uint64_t operator()(float x) const {
    const auto scale = rule(float_of(amax_bits(x)));
    if constexpr (sizeof(scale.stored) == sizeof(float)) {
      return scale_value(bits_of(scale.stored), scale.multiplier);
    } else {
      return scale_value(scale.stored, scale.multiplier);
    }
  }
};

// Any NaN counts as `nan`.
template <class Narrow>
struct Narrowed {
  uint32_t nan;

  NC_EVERYWHERE uint64_t operator()(float x) const {
    const Narrow result = narrow<Narrow>(x);
    return is_nan(widen(result)) ? nan : result.bits;
  }
};

// A visitor has two functions: `steps(name, function, steps)` for a function that has the value of
// the step that a float lies on, and `equal(name, function, definition, samples)` for one that has
// the value of another at each float; `samples` are patterns at which that is most in doubt.

// Of stochastic rounding: the least and the largest, some between, and low bits that must not
// count.
inline constexpr uint32_t kRandomWords[] = {0xff, 0x100, 0x5a5a5a5a, 0xffffffff};

inline std::string drawn(const std::string& name, uint32_t random_word) {
  char text[64];
  std::snprintf(text, sizeof(text), "encode %s, drawing %08x", name.c_str(), random_word);
  return text;
}

template <class Element, class Visitor>
void visit_e8m0(Visitor& visitor, const std::string& name, double max, int mantissa_bits) {
  const int exponent = std::ilogb(max);
  visitor.steps("rceil e8m0 of " + name, Scaled<Rceil<E8M0, Element>>{}, rceil_e8m0(max));
  visitor.steps("floor e8m0 of " + name, Scaled<Floor<E8M0, Element>>{}, floor_e8m0(exponent));
  visitor.steps("even e8m0 of " + name, Scaled<Even<E8M0, Element>>{},
                even_e8m0(exponent, mantissa_bits));
}

template <class Element, class Visitor>
void visit_f32(Visitor& visitor, const std::string& name, double max) {
  visitor.steps("rceil f32 of " + name, Scaled<Rceil<F32, Element>>{}, rceil_f32(max));
  const uint32_t finite = least_magnitude([max](double a) { return max / a < 0x1p128; });
  visitor.equal("exact f32 of " + name, Scaled<Exact<F32, Element>>{}, ExactF32{max},
                {0, finite, kInfinityBits, kInfinityBits + 1, kSign, kSign | finite});
}

template <class Element, class Visitor>
void visit_float(Visitor& visitor, const std::string& name, const Type& type) {
  visitor.steps("encode " + name, Encoded<Element>{}, encoding(type));
  for (const uint32_t word : kRandomWords) {
    visitor.steps(drawn(name, word), Drawn<Element>{word}, stochastic_encoding(type, word));
  }
  visit_e8m0<Element>(visitor, name, type.max(), type.mantissa_bits);
  visit_f32<Element>(visitor, name, type.max());
}

template <class Element, class Visitor>
void visit_int8(Visitor& visitor, const std::string& name, double unit) {
  visitor.steps("encode " + name, Encoded<Element>{}, encoding_of_int8(unit));
  for (const uint32_t word : kRandomWords) {
    visitor.steps(drawn(name, word), Drawn<Element>{word}, stochastic_encoding_of_int8(unit, word));
  }
}

template <class Visitor>
void visit_claims(Visitor& visitor) {
  visit_float<E4M3>(visitor, "e4m3", kE4M3);
  visit_float<E5M2>(visitor, "e5m2", kE5M2);
  visit_float<E2M1>(visitor, "e2m1", kE2M1);
  visit_float<E2M3>(visitor, "e2m3", kE2M3);
  visit_float<E3M2>(visitor, "e3m2", kE3M2);
  visit_int8<Integer8>(visitor, "int8", 1);
  visit_f32<Integer8>(visitor, "int8", 127);
  visit_int8<MxInteger8>(visitor, "int8 / 64", 1.0 / 64);
  visit_e8m0<MxInteger8>(visitor, "int8 / 64", 127.0 / 64, 6);
  visitor.steps("narrow to bf16", Narrowed<Bf16>{kBf16.nan_code}, narrowing(kBf16));
  visitor.steps("narrow to fp16", Narrowed<F16>{kF16.nan_code}, narrowing(kF16));
  for (const float amax : {0.0f, 1e-40f, 1e-36f, 0.02f, 6.0f, 2688.0f, kFloatMax, INFINITY}) {
    char name[64];
    std::snprintf(name, sizeof(name), "nearest_even e4m3 under %g", double{amax});
    using Rule = NearestEven<E4M3Scale, E2M1>;
    visitor.steps(name, Scaled<Rule>{Rule(amax)}, nearest_even_e4m3(amax));
  }
}

}  // namespace narrowcast::test
