// The words that a spec file may use as values, and what each stands for. One table a vocabulary:
// the reader looks words up here, messages list them from here, and generated text spells them from
// here.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/numeric/number_types.hpp"

namespace narrowcast::codegen {

// Of number types and rules, a value a row of runtime/numeric/number_types.hpp: kE4M3 for E4M3.
#define NC_VALUE(word, Type, ...) k##Type,
enum class Element { NC_ELEMENT_TYPES(NC_VALUE) };
enum class ScaleType { NC_SCALE_TYPES(NC_VALUE) };
enum class ScaleRule { NC_SCALE_RULES(NC_VALUE) };
#undef NC_VALUE

enum class Kind { kWeight, kState };  // what a format stores: weights, or an optimizer's state
enum class Packing { kDense, kByte };
enum class TensorScale { kNone, kF32 };  // kNone has no word: the key is left out
enum class Amax { kCurrent, kDelayed };
enum class Rounding { kNearest, kStochastic };

template <class Value>
struct Word {
  std::string_view text;
  Value value;
};

// The words of rows, in their order.
template <class Value, size_t kCount>
constexpr std::array<Word<Value>, kCount> words_of_rows(const std::string_view (&texts)[kCount]) {
  std::array<Word<Value>, kCount> words{};
  for (size_t row = 0; row < kCount; ++row) words[row] = {texts[row], static_cast<Value>(row)};
  return words;
}

#define NC_TEXT(word, ...) #word,
inline constexpr auto kElements = words_of_rows<Element>({NC_ELEMENT_TYPES(NC_TEXT)});
inline constexpr auto kScaleTypes = words_of_rows<ScaleType>({NC_SCALE_TYPES(NC_TEXT)});
inline constexpr auto kScaleRules = words_of_rows<ScaleRule>({NC_SCALE_RULES(NC_TEXT)});
#undef NC_TEXT

inline constexpr Word<Kind> kKinds[] = {{"weight", Kind::kWeight}, {"state", Kind::kState}};
inline constexpr Word<Packing> kPackings[] = {{"dense", Packing::kDense}, {"byte", Packing::kByte}};
inline constexpr Word<TensorScale> kTensorScales[] = {{"f32", TensorScale::kF32}};
inline constexpr Word<Amax> kAmaxes[] = {{"current", Amax::kCurrent}, {"delayed", Amax::kDelayed}};
inline constexpr Word<Rounding> kRoundings[] = {{"nearest", Rounding::kNearest},
                                                {"stochastic", Rounding::kStochastic}};

// The vocabulary of a type of value.
constexpr std::span<const Word<Element>> words(Element) { return kElements; }
constexpr std::span<const Word<Kind>> words(Kind) { return kKinds; }
constexpr std::span<const Word<Packing>> words(Packing) { return kPackings; }
constexpr std::span<const Word<ScaleType>> words(ScaleType) { return kScaleTypes; }
constexpr std::span<const Word<TensorScale>> words(TensorScale) { return kTensorScales; }
constexpr std::span<const Word<Amax>> words(Amax) { return kAmaxes; }
constexpr std::span<const Word<Rounding>> words(Rounding) { return kRoundings; }
constexpr std::span<const Word<ScaleRule>> words(ScaleRule) { return kScaleRules; }

// How a spec spells a value; empty if it is spelled by leaving the key out.
template <class Value>
constexpr std::string_view word_of(Value value) {
  for (const auto& word : words(value)) {
    if (word.value == value) return word.text;
  }
  return {};
}

constexpr const ElementRow& row_of(Element element) {
  return kElementRows[static_cast<size_t>(element)];
}
constexpr const ScaleRow& row_of(ScaleType scale) { return kScaleRows[static_cast<size_t>(scale)]; }

// What the word of an element means beside a scale.
constexpr const ElementType& type_of(Element element, ScaleType scale) {
  const ElementRow& row = row_of(element);
  return row_of(scale).power_of_two ? row.beside_power_of_two : row.plain;
}

// All spellings of a vocabulary, in its order.
template <class Value>
std::vector<std::string_view> texts_of() {
  std::vector<std::string_view> texts;
  for (const auto& word : words(Value{})) texts.push_back(word.text);
  return texts;
}

}  // namespace narrowcast::codegen
