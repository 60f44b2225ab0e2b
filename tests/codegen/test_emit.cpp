// The generated text, of the formats of spec/ and of specs that strain it.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "codegen/emit/emit.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool is_cpp(std::string_view file) { return !file.ends_with(".md") && !file.ends_with(".svg"); }

std::vector<Plan> all_plans() {
  std::vector<Plan> plans;
  for (const fs::path& path : good_specs())
    plans.push_back(plan_of(Source{path.string(), text_of(path)}));
  return plans;
}

// As clang-format leaves a text; nothing if there is no clang-format 14 here.
std::string formatted(const std::string& text, std::string_view file) {
  const fs::path draft =
      fs::temp_directory_path() / ("narrowcast_" + std::to_string(::getpid()) + std::string(file));
  std::ofstream(draft, std::ios::binary) << text;
  const std::string command = std::string(NARROWCAST_CLANG_FORMAT) +
                              " --style=file:" + (kSource / ".clang-format").string() + " " +
                              draft.string();
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string result;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;)
    result.append(buffer, n);
  fs::remove(draft);
  return result;
}

bool has_clang_format() {
  if (std::string(NARROWCAST_CLANG_FORMAT).empty()) return false;
  const std::string command = std::string(NARROWCAST_CLANG_FORMAT) + " --version";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char version[256] = {};
  return fgets(version, sizeof(version), pipe.get()) != nullptr && holds(version, "version 14.");
}

void check_formatting(const Plan& plan) {
  for (const Emitter& emitter : emitters()) {
    if (!is_cpp(emitter.file)) continue;
    CAPTURE(plan.name);
    CAPTURE(std::string(emitter.file));
    const std::string text = emitter.emit(plan);
    CHECK(formatted(text, emitter.file) == text);
  }
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

TEST_CASE("generated C++ is as clang-format leaves it" * doctest::skip(!has_clang_format())) {
  for (const fs::path& path : good_specs())
    check_formatting(plan_of(Source{path.string(), text_of(path)}));
  check_formatting(strained());
}

TEST_CASE("output is deterministic, and ends with one line break") {
  for (const fs::path& path : good_specs()) {
    const Source source{path.string(), text_of(path)};
    for (const Emitter& emitter : emitters()) {
      const std::string text = emitter.emit(plan_of(source));
      CHECK(text == emitter.emit(plan_of(source)));
      CHECK(text.ends_with("\n"));
      CHECK(!text.ends_with("\n\n"));
      CHECK(!holds(text, " \n"));
      CHECK(holds(text, "run `narrowcast build`"));
    }
  }
}

TEST_CASE("a format's folder stays small") {
  for (const fs::path& path : good_specs()) {
    const Plan plan = plan_of(Source{path.string(), text_of(path)});
    int64_t lines = 0;
    for (const Emitter& emitter : emitters()) {
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

TEST_CASE("the table's facts hold the rules, which the page prints") {
  const Plan plan = plan_of("nvfp4");
  const std::string facts = emit_format(plan), page = emit_page(plan);
  CHECK(holds(facts, "{1, 0, \"cuts at multiples of 16 rows, 16 columns\"},"));
  CHECK(holds(page, "| a cut | **exact**: cuts at multiples of 16 rows, 16 columns |"));
  CHECK(holds(page, "| values into a part | **error**: without a master, "));
}

TEST_CASE("an integer element brings its header") {
  CHECK(holds(emit_format(plan_of("mxint8")), "#include \"runtime/numeric/int8.hpp\"\n"));
  CHECK(!holds(emit_format(plan_of("mxfp8_e4m3")), "int8.hpp"));
}

TEST_CASE("the page shows facts, shapes, phases and a picture") {
  const std::string page = emit_page(plan_of("nvfp4"));
  CHECK(holds(page, "| row step | 16 |"));
  CHECK(holds(page, "| `columnwise_data` | uint8 | (520, 150) | 78000 |"));
  CHECK(holds(page, "| `amax` | float32 | (1,) | 4 |"));
  CHECK(!holds(page, "`history`"));
  CHECK(holds(emit_page(plan_of("fp8_e4m3_delayed")), "| `history` | float32 | (1026,) | 4104 |"));
  CHECK(holds(page, "](layout.svg)"));
  CHECK(holds(page, "| forward | rowwise | 4.03125 | 78627 |"));
  const std::string by_pass = emit_page(plan_of("mxfp8_e4m3"));
  CHECK(!holds(by_pass, "amax` | float32"));
  CHECK(holds(by_pass, "| backward | columnwise | 8.25 | 161200 |"));
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

TEST_CASE("a picture is small, and plain") {
  std::vector<Plan> plans = all_plans();
  plans.push_back(strained());
  for (const Plan& plan : plans) {
    CAPTURE(plan.name);
    const std::string svg = emit_picture(plan);
    CHECK(svg.size() < 30'000);
    CHECK(!holds(svg, "<script"));
    CHECK(!holds(svg, "href"));
  }
  CHECK(holds(emit_picture(strained()), "A &quot;quoted&quot; summary"));
}

TEST_CASE("a byte that an element does not fill is drawn with its zeros") {
  Plan plan = plan_of("mxfp6_e2m3");
  CHECK(!holds(emit_picture(plan), "zero bits"));
  plan.rowwise.element_bits = plan.columnwise.element_bits = 8;
  CHECK(holds(emit_picture(plan), "zero bits"));
}

TEST_CASE("the index has a row for each format, with a link") {
  const std::string index = emit_index(all_plans());
  for (const Plan& plan : all_plans()) {
    CHECK(holds(index, "| [`" + plan.name + "`](" + plan.name + "/page.md) | "));
  }
  CHECK(holds(index, "run `make regenerate`"));
  CHECK(index.ends_with(".\n"));
}

}  // namespace
}  // namespace narrowcast::codegen::test
