// Every rule and every error of the reader has a wrong spec in bad/, and beside it the exact
// message.
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

const fs::path kBad = kSource / "tests/codegen/bad";

Source bad_spec(const fs::path& path) { return {"bad/" + path.filename().string(), text_of(path)}; }

TEST_CASE("each wrong spec gives exactly the message beside it") {
  const std::vector<fs::path> paths = files(kBad, ".toml");
  REQUIRE(paths.size() > rules().size());
  for (const fs::path& path : paths) {
    CAPTURE(path.stem().string());
    const std::string expected = text_of(fs::path(path).replace_extension(".expected"));
    CHECK(!expected.empty());
    CHECK(messages(bad_spec(path)) == expected);
  }
}

TEST_CASE("each message belongs to a wrong spec") {
  for (const fs::path& path : files(kBad, ".expected")) {
    CHECK_MESSAGE(fs::exists(fs::path(path).replace_extension(".toml")), path.string());
  }
}

TEST_CASE("each rule has a wrong spec of its name, which breaks it") {
  for (const Rule& rule : rules()) {
    const std::string name(rule.name);
    CAPTURE(name);
    const Source source = bad_spec(kBad / (name + ".toml"));
    Diagnostics reading(source), found(source);
    rule.check(read(source, reading), found);
    CHECK(!found.empty());
  }
}

TEST_CASE("no rule finds fault with a good spec, and none with a spec of which nothing is known") {
  for (const fs::path& path : good_specs()) plan_of(Source{path.string(), text_of(path)});
  const Source nonsense{"nonsense.toml", "= = ="};
  Diagnostics diagnostics(nonsense);
  validate(read(nonsense, diagnostics), diagnostics);
  CHECK(diagnostics.size() == 1);
}

}  // namespace
}  // namespace narrowcast::codegen::test
