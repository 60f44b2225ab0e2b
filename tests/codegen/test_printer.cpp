#include <doctest/doctest.h>

#include <stdexcept>

#include "codegen/cpp_text.hpp"
#include "codegen/printer.hpp"

namespace narrowcast::codegen {
namespace {

TEST_CASE("the margin goes, the indentation stays") {
  CHECK(fill(R"text(
    if (x) {
      $call$;

    }
  )text",
             {{"call", "f()"}}) == "if (x) {\n  f();\n\n}");
  CHECK(fill("one line", {}) == "one line");
}

TEST_CASE(
    "a value of several lines keeps the indentation of its hole, and gets no trailing spaces") {
  CHECK(fill("{\n  $body$\n}", {{"body", "a;\n\n  b;"}}) == "{\n  a;\n\n    b;\n}");
}

TEST_CASE("a line that holds nothing but an empty value is left out; others are not") {
  CHECK(fill("a\n  $nothing$\nb", {{"nothing", ""}}) == "a\nb");
  CHECK(fill("a$nothing$\n\nb", {{"nothing", ""}}) == "a\n\nb");
}

TEST_CASE("two dollars are one") { CHECK(fill("$$ $x$ $$x$$", {{"x", "1"}}) == "$ 1 $x$"); }

TEST_CASE("a value is not a template") { CHECK(fill("$a$", {{"a", "$b$"}}) == "$b$"); }

TEST_CASE("an unknown hole is fatal, with its source line") {
  const std::string line = std::to_string(__LINE__ + 1);
  const auto wrong = [] { return fill("a $hole$", {{"whole", ""}}); };
  CHECK_THROWS_AS(wrong(), std::logic_error);
  try {
    wrong();
  } catch (const std::logic_error& error) {
    const std::string message = error.what();
    CHECK(message.find("test_printer.cpp:" + line + ": ") != std::string::npos);
    CHECK(message.find("$hole$") != std::string::npos);
  }
  CHECK_THROWS_AS(fill("an open $hole", {{"hole", ""}}), std::logic_error);
}

TEST_CASE("a printer has values of its own") {
  Printer printer(Values{{"name", "n"}});
  printer.print("$name$ $x$", {{"x", "1"}});
  printer.print("end");
  CHECK(printer.text() == "n 1\nend\n");
  CHECK(printer.fill("$name$") == "n");
}

TEST_CASE("texts become comments and literals") {
  CHECK(comment("").empty());
  CHECK(comment("short") == "// short");
  CHECK(quoted("a\"b\\c?\?/") == "\"a\\\"b\\\\c\\?\\?/\"");
  CHECK(json_string("a\"b\\c?\xc3\xa9") == "\"a\\\"b\\\\c?\xc3\xa9\"");
}

}  // namespace
}  // namespace narrowcast::codegen
