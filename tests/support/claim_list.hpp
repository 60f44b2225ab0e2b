// What the library says of a single float, beside its definition: one list for the CPU and the GPU,
// for the ordinary tests and for `make exhaustive`.
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>

#include "runtime/numeric/narrow.hpp"
#include "runtime/numeric/number_types.hpp"
#include "runtime/numeric/split_float.hpp"
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

// A rule's answer to a block that it has scaled and that was decoded. The largest element times the
// scale stays below infinity but for one amax: the largest float, with elements of int8.
template <class Element>
struct ScaledAgain {
  NC_EVERYWHERE uint64_t operator()(float x) const {
    constexpr Quotient<F32, Element> rule{};
    const float decoded = rule(float_of(amax_bits(x))).stored * Element::kMax;
    return Scaled<Quotient<F32, Element>>{rule}(at_most(decoded, kFloatMax));
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

struct SplitAndJoined {
  NC_EVERYWHERE uint64_t operator()(float x) const {
    const SplitFloat made = split(x);
    return split_value(made.value.bits, made.residual, bits_of(join(made)));
  }
};

struct NarrowedByChance {
  uint32_t random_word;
  NC_EVERYWHERE uint64_t operator()(float x) const {
    const Bf16 result = narrow_stochastically(x, random_word);
    return is_nan(widen(result)) ? kBf16.nan_code : result.bits;
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
  const uint32_t least = bits_of(static_cast<float>(max * 0x1p-128));
  const std::vector<uint32_t> ends{0,
                                   1,
                                   least,
                                   least + 1,
                                   kInfinityBits - 1,
                                   kSign,
                                   kInfinityBits,
                                   kInfinityBits + 1,
                                   kSign | least};
  visitor.equal("quotient f32 of " + name, Scaled<Quotient<F32, Element>>{}, QuotientF32{max},
                ends);
  visitor.equal("quotient f32 of " + name + ", decoded and scaled again", ScaledAgain<Element>{},
                QuotientF32{max}, ends);
}

template <class Element, class Visitor, class Definition>
void visit_codes(Visitor& visitor, const std::string& name, const Definition& definition) {
  visitor.steps("encode " + name, Encoded<Element>{}, encoding(definition));
  for (const uint32_t word : kRandomWords) {
    visitor.steps(drawn(name, word), Drawn<Element>{word}, stochastic_encoding(definition, word));
  }
}

// An element as it is beside an fp32 scale, and beside one that is a power of two.
template <class Plain, class Binary, class Visitor, class PlainDefinition, class BinaryDefinition>
void visit_element(Visitor& visitor, const std::string& word, const PlainDefinition& plain,
                   const BinaryDefinition& binary) {
  visit_codes<Plain>(visitor, word, plain);
  visit_f32<Plain>(visitor, word, plain.max());
  if constexpr (!std::is_same_v<Plain, Binary>) {
    visit_codes<Binary>(visitor, word + " beside e8m0", binary);
  }
  visit_e8m0<Binary>(visitor, word, binary.max(), binary.mantissa_bits);
}

template <class Visitor>
void visit_claims(Visitor& visitor) {
#define NC_VISIT(word, Plain, Binary, header) \
  visit_element<Plain, Binary>(visitor, #word, k##Plain, k##Binary);
  NC_ELEMENT_TYPES(NC_VISIT)
#undef NC_VISIT
  visitor.steps("narrow to bf16", Narrowed<Bf16>{kBf16.nan_code}, narrowing(kBf16));
  visitor.steps("narrow to fp16", Narrowed<F16>{kF16.nan_code}, narrowing(kF16));
  for (const uint32_t word : kRandomWords)
    visitor.steps(drawn("bf16", word), NarrowedByChance{word}, stochastic_narrowing(kBf16, word));
  visitor.equal("split to bf16 and a residual", SplitAndJoined{}, Split{},
                {0, 0x7f7f7f80, kInfinityBits, kInfinityBits + 1, kSign});
  for (const float amax : {0.0f, 1e-40f, 1e-36f, 0.02f, 6.0f, 2688.0f, kFloatMax, INFINITY}) {
    char name[64];
    std::snprintf(name, sizeof(name), "nearest_even e4m3 under %g", double{amax});
    using Rule = NearestEven<E4M3Scale, E2M1>;
    visitor.steps(name, Scaled<Rule>{Rule(amax)}, nearest_even_e4m3(amax));
  }
}

}  // namespace narrowcast::test
