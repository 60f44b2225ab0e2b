#include <doctest/doctest.h>

#include "codegen/diagnostic.hpp"

namespace narrowcast::codegen {
namespace {

constexpr std::string_view kWords[] = {"rowwise",   "columnwise", "scale_per",
                                       "scale_pad", "e4m3",       "e2m3"};

TEST_CASE("nearest word") {
  CHECK(nearest("rowise", kWords) == "rowwise");
  CHECK(nearest("colwise", kWords) == "rowwise");
  CHECK(nearest("colmnwise", kWords) == "columnwise");
  CHECK(nearest("scale_apd", kWords) == "scale_pad");  // one swap is nearer than two replacements
  CHECK(nearest("scale_per", kWords) == "scale_per");
  CHECK(nearest("e4m2", kWords) == "e4m3");
  CHECK(nearest("colour", kWords).empty());
  CHECK(nearest("", kWords).empty());
  CHECK(nearest("rowwise", {}).empty());
}

TEST_CASE("lists") {
  CHECK(listed({kWords, 0}, "\"").empty());
  CHECK(listed({kWords, 1}, "\"") == "\"rowwise\"");
  CHECK(listed({kWords, 2}, "") == "rowwise or columnwise");
  CHECK(listed({kWords, 3}, "'") == "'rowwise', 'columnwise' or 'scale_per'");
}

TEST_CASE("a diagnostic shows the line and a caret") {
  const Source source{"folder/x.toml", "one = 1\ntwo = \"II\"\n"};
  CHECK(source.stem() == "x");
  Diagnostics diagnostics(source);
  diagnostics.add({2, 7, 4}, "not a number", "write 2");
  CHECK(diagnostics.text() ==
        "folder/x.toml:2:7: error: not a number\n"
        "  2 | two = \"II\"\n"
        "    |       ^~~~\n"
        "  write 2\n");
}

TEST_CASE("diagnostics come in the order of the file, those of the whole file first") {
  const Source source{"x.toml", "a\nb\n"};
  Diagnostics diagnostics(source);
  diagnostics.add({2, 1, 1}, "second");
  diagnostics.add({1, 1, 1}, "first");
  diagnostics.add({}, "whole");
  diagnostics.add({1, 1, 1}, "first, too");
  CHECK(diagnostics.text() ==
        "x.toml: error: whole\n"
        "x.toml:1:1: error: first\n  1 | a\n    | ^\n"
        "x.toml:1:1: error: first, too\n  1 | a\n    | ^\n"
        "x.toml:2:1: error: second\n  2 | b\n    | ^\n");
}

TEST_CASE(
    "tabs stay tabs, characters of several bytes take one column, a carriage return is no text") {
  const Source source{"x.toml", "\t\xc3\xa9 = 1\r\nlast"};
  Diagnostics diagnostics(source);
  diagnostics.add({1, 6, 1}, "one");
  diagnostics.add({2, 5, 1}, "after the end");
  CHECK(diagnostics.text() ==
        "x.toml:1:6: error: one\n  1 | \t\xc3\xa9 = 1\n    | \t    ^\n"
        "x.toml:2:5: error: after the end\n  2 | last\n    |     ^\n");
}

}  // namespace
}  // namespace narrowcast::codegen
