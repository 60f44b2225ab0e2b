// The generated text, of the formats of spec/ and of specs that strain it.
#include "codegen/emit/emit.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A spec whose name and texts are as long and as odd as a user may write them.
Plan strained() {
  Plan plan = plan_of("nvfp4_1d");
  plan.name = "a_name_as_long_as_a_name_may_be_40_chars";
  plan.name_space = "format_" + plan.name;
  plan.summary =
      "A \"quoted\" summary with a backslash \\ and an accent \xc3\xa9 that goes on and on, well "
      "beyond "
      "what a line of a hundred columns can hold, so that it must be broken more than once, as "
      "this is.";
  plan.reference = "https://example.org/" + std::string(150, 'x') + "/paper.pdf";
  return plan;
}

TEST_CASE("output is deterministic, and ends with one line break") {
  std::vector<fs::path> specs = good_specs(), states = state_specs();
  specs.insert(specs.end(), states.begin(), states.end());
  for (const fs::path& path : specs) {
    const Source source{path.string(), text_of(path)};
    for (const Emitter& emitter : emitters(plan_of(source).kind)) {
      const std::string text = emitter.emit(plan_of(source));
      CHECK(text == emitter.emit(plan_of(source)));
      CHECK(text.ends_with("\n"));
      CHECK(!text.ends_with("\n\n"));
      CHECK(!holds(text, " \n"));
      CHECK(holds(text, "run `narrowcast build`"));
    }
  }
}

TEST_CASE("a state format's header and page have what its spec says") {
  const Source source{
      "narrow.toml",
      "format = \"narrow\"\nkind = \"state\"\nsummary = \"Four words, a \\\"quoted\\\".\"\n"
      "reference = \"none\"\nvocabulary = 1\nblock = 32\n"
      "[signed]\nroot = 1\n[nonnegative]\nroot = 2\n"};
  const Plan plan = plan_of(source);
  const std::string header = emit_state(plan), page = emit_state_page(plan);
  CHECK(holds(header, "namespace narrowcast::state_narrow::"));
  CHECK(holds(header, "kSummary = \"Four words, a \\\"quoted\\\".\""));
  CHECK(holds(header, "kBlock = 32;"));
  CHECK(holds(header, "kRoots[] = {1, 2};"));
  CHECK(holds(page, "| bits an element | 9 |"));
  CHECK(holds(page,
              "int8: `code * scale`, where the scale is the block's largest magnitude "
              "divided by 127 |"));
  CHECK(holds(page, "uint8: `code^2 * scale`"));
}

TEST_CASE("a format's folder stays small") {
  for (const fs::path& path : good_specs()) {
    const Plan plan = plan_of(Source{path.string(), text_of(path)});
    int64_t lines = 0;
    for (const Emitter& emitter : emitters(Kind::kWeight)) {
      const std::string text = emitter.emit(plan);
      lines += std::count(text.begin(), text.end(), '\n');
    }
    CAPTURE(plan.name);
    CHECK(lines < 600);
  }
}

TEST_CASE("the cast says once what happens once") {
  const std::string derived = emit_cast(plan_of("nvfp4")),
                    quantized = emit_cast(plan_of("mxfp8_e4m3"));
  CHECK(holds(derived, "static void derive_columnwise"));
  CHECK(!holds(quantized, "derive_columnwise"));
  const auto count = [](const std::string& text, std::string_view part) {
    int n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  const auto cast_in = [](const std::string& text) {
    return text.substr(0, text.find("// Before a cast of flat shards"));
  };
  CHECK(count(cast_in(derived), "block_amax") == 1);
  CHECK(count(cast_in(quantized), "block_amax") == 2);
  CHECK(count(derived, "block_amax") == 2);
  CHECK(count(quantized, "block_amax") == 4);
  CHECK(count(emit_cast(plan_of("nvfp4_1d")), "map(Rule{in.tensor_amax})") == 2);
}

TEST_CASE("a scale that spans the tensor is made from its amax") {
  const std::string text = emit_cast(plan_of("fp8_e4m3"));
  CHECK(holds(text, "x.tensor_scale(unless_nan(Rule{}, in.tensor_amax));"));
  CHECK(holds(text, "load_scale<Tile::kRows, Tile::kColumns>"));
  CHECK(!holds(text, "block_amax"));
  CHECK(holds(text, "static void collect(const Tile&) {}"));
}

TEST_CASE("a delayed scale is made from the history's multiplier") {
  const std::string text = emit_cast(plan_of("fp8_e4m3_delayed"));
  CHECK(holds(text, "using Rule = Exact<F32, E4M3>;"));
  CHECK(holds(text, "x.tensor_scale(scale_of<ScaleType>(in.multiplier));"));
  CHECK(!holds(text, "tensor_amax"));
}

TEST_CASE("the gather has a sequence for each phase, or one for all") {
  const std::string derived = emit_gather(plan_of("nvfp4"));
  CHECK(holds(derived, "static void always"));
  CHECK(!holds(derived, "COLUMNWISE"));
  CHECK(holds(derived, "carry(scales(NC_ROWWISE_SCALE, kRowwise, Along::kRows, {16, 1}));"));
  CHECK(holds(derived, "one of the 16x1 that are stored, without the padding to 128x4."));
  const std::string by_pass = emit_gather(plan_of("mxfp4"));
  for (const char* phase : {"forward", "backward", "both"})
    CHECK(holds(by_pass, std::string("static void ") + phase + "(const Carry& carry) {"));
  CHECK(holds(by_pass, "carry(data(NC_COLUMNWISE_DATA, kColumnwise, Along::kColumns));"));
  const std::string spanning = emit_gather(plan_of("fp8_e4m3"));
  CHECK(!holds(spanning, "carry(scales("));
  CHECK(holds(spanning, "Every rank has the scale,"));
}

TEST_CASE("both facts hold the rules") {
  const Plan plan = plan_of("nvfp4");
  const std::string table = emit_format(plan), facts = emit_facts(plan);
  CHECK(holds(table, "{1, 0, \"cuts at multiples of 16 rows, 16 columns\"},"));
  CHECK(holds(facts, R"({"exact": true, "text": "cuts at multiples of 16 rows, 16 columns"})"));
  CHECK(holds(facts, R"({"exact": false, "text": "without a master, )"));
}

TEST_CASE("texts keep their quotes and backslashes in C++ and in JSON") {
  const Plan plan = strained();
  for (const std::string& text : {emit_format(plan), emit_facts(plan)})
    CHECK(holds(text, R"("A \"quoted\" summary with a backslash \\ and an accent )"));
}

TEST_CASE("an integer element brings its header") {
  CHECK(holds(emit_format(plan_of("mxint8")), "#include \"runtime/numeric/int8.hpp\"\n"));
  CHECK(!holds(emit_format(plan_of("mxfp8_e4m3")), "int8.hpp"));
}

TEST_CASE("reasons for row steps name blocks and shared bytes") {
  const Reasons reasons = plan_of("mxfp6_e2m3").reasons;
  CHECK(reasons.row_step ==
        "Cuts at multiples of 32 rows divide nothing: a columnwise block has 32 rows, columnwise "
        "data keep 4 "
        "rows in 3 bytes.");
  CHECK(reasons.shard_row_step == "A shard keeps both usages, so both count.");
  CHECK(plan_of("fp8_e4m3").reasons.row_step ==
        "A cut between any two rows divides neither a block nor a byte.");
}

}  // namespace
}  // namespace narrowcast::codegen::test
