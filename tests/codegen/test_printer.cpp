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

TEST_CASE("comments are filled to the line width") {
  const std::string words =
      "word word word word word word word word word word word word word word word word word word "
      "word word word word word";
  CHECK(comment("", 0).empty());
  CHECK(comment("short", 2) == "// short");
  CHECK(comment(words, 4) ==
        "// word word word word word word word word word word word word word word word word word "
        "word\n"
        "// word word word word word");
}

std::string member(const std::string& text) {
  return with_string({.before = ".a =", .after = ","}, text, 4);
}

TEST_CASE("texts become literals") {
  CHECK(member("say \"\\\"") == ".a = \"say \\\"\\\\\\\"\",");
  const std::string word(80, 'w');
  CHECK(member(word + " " + word) == ".a =\n    \"" + word + " \"\n    \"" + word + "\",");
  const StringPlace constant{.before = "char a[] =", .after = ";", .most = 92};
  CHECK(with_string(constant, "1234", 0) == "char a[] = \"1234\";");
  const std::string digits(92, '0');
  CHECK(with_string(constant, digits + "1", 0) == "char a[] =\n    \"" + digits + "\"\n    \"1\";");
  const StringPlace list{.before = "{1,", .after = "},", .hang = 1};
  CHECK(with_string(list, "text", 4) == "{1, \"text\"},");
  CHECK(with_string(list, "a\"b\\c?\?/", 4) == "{1, \"a\\\"b\\\\c?\\?/\"},");
  const std::string fits(91, 'x');
  CHECK(with_string(list, fits, 4) == "{1,\n \"" + fits + "\"},");
}

// What a compiler reads from adjacent literals. An escape must end in the literal that it began in.
std::string value_of(const std::string& code) {
  std::string value;
  bool inside = false;
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i] == '"') {
      inside = !inside;
    } else if (inside) {
      value += code[i] == '\\' ? code[++i] : code[i];
    }
  }
  return value;
}

TEST_CASE("a literal reads back as its text, and is never cut inside a character") {
  for (size_t length = 70; length < 100; ++length) {
    const std::string text = std::string(length, 'x') + "\"\\\xc3\xa9\\\"" + std::string(140, 'y');
    const std::string code = member(text);
    CAPTURE(code);
    CHECK(value_of(code) == text);
    CHECK(code.find("\xc3\"") == std::string::npos);
    for (size_t begin = 0, end = 0; begin < code.size(); begin = end + 1) {
      end = std::min(code.find('\n', begin), code.size());
      CHECK(4 + end - begin <= kLineWidth + 1);  // the two bytes of an accent take one column
    }
  }
}

}  // namespace
}  // namespace narrowcast::codegen
