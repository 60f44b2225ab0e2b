// The words that a spec file may use as values, and what each stands for. One table a vocabulary:
// the reader looks words up here, messages list them from here, and generated text spells them from
// here.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace narrowcast::codegen {

enum class Element { kE4M3, kE5M2, kE2M1, kE2M3, kE3M2, kInt8 };
enum class Packing { kDense, kByte };
enum class ScaleType { kE8M0, kE4M3, kF32 };
enum class TensorScale { kNone, kF32 };  // kNone has no word: the key is left out
enum class Amax { kCurrent, kDelayed };
enum class ScaleRule { kExact, kNearestEven, kFloor, kEven, kRceil };

template <class Value>
struct Word {
  std::string_view text;
  Value value;
};

inline constexpr Word<Element> kElements[] = {{"e4m3", Element::kE4M3}, {"e5m2", Element::kE5M2},
                                              {"e2m1", Element::kE2M1}, {"e2m3", Element::kE2M3},
                                              {"e3m2", Element::kE3M2}, {"int8", Element::kInt8}};
inline constexpr Word<Packing> kPackings[] = {{"dense", Packing::kDense}, {"byte", Packing::kByte}};
inline constexpr Word<ScaleType> kScaleTypes[] = {
    {"e8m0", ScaleType::kE8M0}, {"e4m3", ScaleType::kE4M3}, {"f32", ScaleType::kF32}};
inline constexpr Word<TensorScale> kTensorScales[] = {{"f32", TensorScale::kF32}};
inline constexpr Word<Amax> kAmaxes[] = {{"current", Amax::kCurrent}, {"delayed", Amax::kDelayed}};
inline constexpr Word<ScaleRule> kScaleRules[] = {{"exact", ScaleRule::kExact},
                                                  {"nearest_even", ScaleRule::kNearestEven},
                                                  {"floor", ScaleRule::kFloor},
                                                  {"even", ScaleRule::kEven},
                                                  {"rceil", ScaleRule::kRceil}};

// The vocabulary of a type of value.
constexpr std::span<const Word<Element>> words(Element) { return kElements; }
constexpr std::span<const Word<Packing>> words(Packing) { return kPackings; }
constexpr std::span<const Word<ScaleType>> words(ScaleType) { return kScaleTypes; }
constexpr std::span<const Word<TensorScale>> words(TensorScale) { return kTensorScales; }
constexpr std::span<const Word<Amax>> words(Amax) { return kAmaxes; }
constexpr std::span<const Word<ScaleRule>> words(ScaleRule) { return kScaleRules; }

// How a spec spells a value; empty if it is spelled by leaving the key out.
template <class Value>
constexpr std::string_view word_of(Value value) {
  for (const auto& word : words(value)) {
    if (word.value == value) return word.text;
  }
  return {};
}

// All spellings of a vocabulary, in its order.
template <class Value>
std::vector<std::string_view> texts_of() {
  std::vector<std::string_view> texts;
  for (const auto& word : words(Value{})) texts.push_back(word.text);
  return texts;
}

}  // namespace narrowcast::codegen
