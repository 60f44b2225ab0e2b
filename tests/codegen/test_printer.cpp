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

TEST_CASE("statements break where they do not fit") {
  const std::string fits(89, 'v'), too_long(90, 'v');
  CHECK(assignment("int x", fits, 2) == "int x = " + fits + ";");
  CHECK(assignment("int x", too_long, 2) == "int x =\n    " + too_long + ";");
  CHECK(short_function("int f()", "return 1;", 0) == "int f() { return 1; }");
  CHECK(short_function("int f()", too_long, 0) == "int f() {\n  " + too_long + "\n}");
}

TEST_CASE("texts become literals") {
  CHECK(string_member("a", "say \"\\\"", 4) == ".a = \"say \\\"\\\\\\\"\",");
  const std::string word(80, 'w');
  CHECK(string_member("a", word + " " + word, 4) ==
        ".a =\n    \"" + word + " \"\n    \"" + word + "\",");
  CHECK(string_constant("char a[]", "1234", 2, 0) == "char a[] = \"1234\";");
  const std::string digits(92, '0');
  CHECK(string_constant("char a[]", digits + "1", 92, 0) ==
        "char a[] =\n    \"" + digits + "\"\n    \"1\";");
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
    const std::string member = string_member("a", text, 4);
    CAPTURE(member);
    CHECK(value_of(member) == text);
    CHECK(member.find("\xc3\"") == std::string::npos);
    for (size_t begin = 0, end = 0; begin < member.size(); begin = end + 1) {
      end = std::min(member.find('\n', begin), member.size());
      CHECK(4 + end - begin <= kLineWidth + 1);  // the two bytes of an accent take one column
    }
  }
}

}  // namespace
}  // namespace narrowcast::codegen
