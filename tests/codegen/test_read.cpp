// What a spec leaves out takes the vocabulary's default; what it says is kept with its place.
#include "codegen/read.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

constexpr const char* kShortest = R"(format = "shortest"
summary = "A spec of required keys."
reference = "None"
vocabulary = 1
element.type = "e4m3"
scale.type = "e8m0"
rowwise.block = [1, 32]
columnwise.block = "tensor"
columnwise.transposed = true
quantize.scale = "rceil"
)";

Format read_quietly(const Source& source) {
  Diagnostics diagnostics(source);
  Format format = read(source, diagnostics);
  CHECK_MESSAGE(diagnostics.empty(), diagnostics.text());
  return format;
}

TEST_CASE("defaults") {
  const Source source{"shortest.toml", kShortest};
  const Format format = read_quietly(source);
  CHECK(format.packing.value == Packing::kDense);
  CHECK(format.tensor_scale.value == TensorScale::kNone);
  CHECK(format.amax.value == Amax::kCurrent);
  CHECK(format.rowwise.scale_per.value == Block{1, 32});
  CHECK(format.rowwise.scale_pad.value == Block{1, 1});
  CHECK(!format.rowwise.transposed.value);
  CHECK(!format.rowwise.scale_transposed.value);
  CHECK(format.columnwise.block.value.spans_tensor());
  CHECK(format.columnwise.scale_transposed.value);
  for (const Field<bool>* field :
       {&format.rowwise.transposed, &format.columnwise.scale_transposed}) {
    CHECK(field->known());
    CHECK(!field->given());
  }
}

TEST_CASE("each field knows its place") {
  const Source source{"shortest.toml", kShortest};
  const Format format = read_quietly(source);
  CHECK(format.element.at.line == 5);
  CHECK(format.element.at.column == 16);
  CHECK(format.element.at.length == 6);
  CHECK(format.rowwise.block.at.line == 7);
  CHECK(format.rowwise.block.at.column == 17);
  CHECK(format.rowwise.block.at.length == 7);
}

TEST_CASE("all words of the vocabulary are read") {
  const auto reads = [](const std::string& from, const std::string& to) {
    std::string text = kShortest;
    text.replace(text.find(from), from.size(), to);
    const Source source{"shortest.toml", text};
    return read_quietly(source);
  };
  for (const auto& word : kElements) {
    const std::string line = "element.type = \"" + std::string(word.text) + "\"";
    CHECK(reads("element.type = \"e4m3\"", line).element.value == word.value);
  }
  for (const auto& word : kScaleTypes) {
    const std::string line = "scale.type = \"" + std::string(word.text) + "\"";
    CHECK(reads("scale.type = \"e8m0\"", line).scale.value == word.value);
  }
  for (const auto& word : kScaleRules) {
    const std::string line = "quantize.scale = \"" + std::string(word.text) + "\"";
    CHECK(reads("quantize.scale = \"rceil\"", line).rule.value == word.value);
  }
  for (const auto& word : kPackings) {
    const std::string line = "element.packing = \"" + std::string(word.text) + "\"\nscale.type";
    CHECK(reads("scale.type", line).packing.value == word.value);
  }
  for (const auto& word : kAmaxes) {
    const std::string line = "quantize.amax = \"" + std::string(word.text) + "\"\nquantize.scale";
    CHECK(reads("quantize.scale", line).amax.value == word.value);
  }
  CHECK(reads("scale.type", "tensor_scale.type = \"f32\"\nscale.type").tensor_scale.value ==
        TensorScale::kF32);
}

TEST_CASE("a folder and a missing file are no specs") {
  Source source;
  std::string reason;
  CHECK(!load(kSource.string(), source, reason));
  CHECK(reason == "it is a folder");
  CHECK(!load((kSource / "spec/missing.toml").string(), source, reason));
  CHECK(reason == "there is no such file");
  CHECK(load((kSource / "spec/nvfp4.toml").string(), source, reason));
  CHECK(reason.empty());
}

}  // namespace
}  // namespace narrowcast::codegen::test
