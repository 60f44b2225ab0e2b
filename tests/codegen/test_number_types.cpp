// Every row of runtime/numeric/number_types.hpp makes formats: no list of types is kept elsewhere.
#include "codegen/emit/emit.hpp"
#include "codegen/golden.hpp"
#include "codegen/golden_scale.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

Plan plan_with(Element element, const GoldenRule& golden) {
  std::string text =
      "format = \"drawn\"\nsummary = \"A format.\"\nreference = \"none\"\nvocabulary = 1\n"
      "rowwise.block = [1, 32]\ncolumnwise.block = [32, 1]\n";
  const auto add = [&](const std::string& key, std::string_view word) {
    text += key + " = \"" + std::string(word) + "\"\n";
  };
  add("element.type", word_of(element));
  add("scale.type", word_of(golden.scale));
  add("quantize.scale", word_of(golden.rule));
  if (golden.rule == ScaleRule::kNearestEven) add("tensor_scale.type", "f32");
  return plan_of(Source{"drawn.toml", text});
}

TEST_CASE("every element beside every scale and rule") {
  for (const auto& [word, element] : kElements) {
    for (const GoldenRule& golden : golden_rules()) {
      if (golden.rule == ScaleRule::kNearestEven && element != Element::kE2M1) continue;
      CAPTURE(std::string(word));
      CAPTURE(std::string(word_of(golden.scale)));
      const Plan plan = plan_with(element, golden);
      const ElementRow& row = row_of(element);
      const ScaleRow& scale = row_of(golden.scale);
      CHECK(plan.code_bits == row.bits);
      CHECK(plan.rowwise.scale_bytes == scale.bytes);
      CHECK(plan.example.rowwise.scale.type == scale.dtype);
      const std::string text = emit_format(plan);
      CHECK(text.find("#include \"" + std::string(row.header) + "\"\n") != std::string::npos);
      CHECK(text.find("using ScaleType = " + std::string(scale.name) + ";") != std::string::npos);
      // The largest value of a block comes back, to within the step of a scale and of an element.
      // Four of them are whole bytes in every format.
      const std::vector<float> kept = golden_decoded(plan, plan.rowwise, 1, {0, 3.0f, 0, 0});
      CHECK(kept[0] == 0);
      CHECK(kept[1] == doctest::Approx(3.0f).epsilon(0.26));
    }
  }
}

TEST_CASE("every scale type has a rule, and every rule a scale type") {
  for (const auto& type : kScaleTypes) {
    const auto has = [&](const GoldenRule& golden) { return golden.scale == type.value; };
    CHECK(std::any_of(golden_rules().begin(), golden_rules().end(), has));
  }
  for (const auto& rule : kScaleRules) {
    const auto has = [&](const GoldenRule& golden) { return golden.rule == rule.value; };
    CHECK(std::any_of(golden_rules().begin(), golden_rules().end(), has));
  }
}

TEST_CASE("a word may be another type beside a power of two") {
  const ElementType& plain = type_of(Element::kInteger8, ScaleType::kF32);
  const ElementType& binary = type_of(Element::kInteger8, ScaleType::kE8M0);
  CHECK(plain.name == "Integer8");
  CHECK(plain.max == 127);
  CHECK(binary.name == "MxInteger8");
  CHECK(binary.max == 127.0f / 64);
  CHECK(binary.decode(binary.encode(0.5f)) == 0.5f);
}

}  // namespace
}  // namespace narrowcast::codegen::test
