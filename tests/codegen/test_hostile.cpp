// Specs that nobody means: too long, too deep, of other encodings. Each is an error that says
// where, in little time and few words.
#include <sys/stat.h>

#include <chrono>
#include <sstream>

#include "codegen/load.hpp"
#include "codegen/utf8.hpp"
#include "folder.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string repeated(std::string_view part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

std::string messages_of(const std::string& text) { return messages(Source{"x.toml", text}); }

TEST_CASE("what is not UTF-8 has a place and a byte") {
  CHECK(messages_of("a = 1\nb = \"caf\xc3\xa9 caf\xe9\"\n") ==
        "x.toml:2:14: error: byte 0xe9 is not UTF-8\n"
        "  2 | b = \"caf\xc3\xa9 caf\xef\xbf\xbd\"\n"
        "    |              ^\n"
        "  save the file as UTF-8, or write plain ASCII\n");
  CHECK(holds(messages_of("\"\xc3\" = 1"), "x.toml:1:2: error: byte 0xc3 is not UTF-8"));
  CHECK(holds(messages_of("\xff\xfe"
                          "a"),
              "x.toml:1:1: error: byte 0xff is not UTF-8"));
}

TEST_CASE("characters of UTF-8") {
  for (const char* good : {"a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(character_length(good) == std::string(good).size());
  // Continuations alone, overlong forms, surrogates, beyond U+10FFFF, cut short, no bytes of UTF-8.
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3",
                          "\xe2\x82", "\xf0\x9f\x98", "\xc3(", "\xe2\x82(", "\xff", ""})
    CHECK(character_length(bad) == 0);
}

TEST_CASE("a key of many dots does not reach the reader of TOML") {
  const std::string deep = repeated("a.", 30'000) + "a = 1\n";
  CHECK(holds(messages_of("\n" + deep), "x.toml:2:258: error: more than 128 dots on one line"));
  CHECK(holds(messages_of("[" + deep), "more than 128 dots on one line"));
  CHECK(holds(messages_of("# " + repeated("...", 40) + "\n" + repeated("a.", 100) + "a = 1\n"),
              "unknown key a"));
}

TEST_CASE("beyond ASCII is nothing but comments, and texts on one line") {
  const auto place_of = [](const std::string& text) {
    const std::string errors = messages_of(text);
    if (!holds(errors, "\xc3\xa9\" is not ASCII")) return std::string();
    return errors.substr(0, errors.find(": error"));
  };
  for (const std::string good :
       {"# \xc3\xa9\n", "a = \"\xc3\xa9\"", "a = '\xc3\xa9'", "a = \"\\\"\xc3\xa9\"",
        "\"\xc3\xa9\" = 1", "a = '\\' # \xc3\xa9", "a = '''#''' # \xc3\xa9",
        "a = \"\"\"\\\"\"\"\"\" # \xc3\xa9", "a = \"'\" # \xc3\xa9", "\xef\xbb\xbf# \xc3\xa9",
        "a = \"\" # \xc3\xa9", "a.\"\xc3\xa9\" = 1", "a = [\"\xc3\xa9\",'\xc3\xa9']"})
    CHECK(place_of(good) == "");
  CHECK(place_of("\xc3\xa9 = 1") == "x.toml:1:1");
  CHECK(place_of("\n\na = \xc3\xa9") == "x.toml:3:5");
  CHECK(place_of("a = \"\xc3\xa9\" \xc3\xa9") == "x.toml:1:9");
  CHECK(place_of("a = \"\"\"\n\xc3\xa9\"\"\"") == "x.toml:2:1");
  CHECK(place_of("a = '''\n#\xc3\xa9'''") == "x.toml:2:2");
  CHECK(place_of("a = \"b\n\xc3\xa9") == "x.toml:2:1");
  CHECK(place_of("a = '\\' \xc3\xa9") == "x.toml:1:9");
  CHECK(place_of("a = 0\"\xc3\xa9\"") == "x.toml:1:7");
  CHECK(place_of("a = \"\"'\xc3\xa9'") == "x.toml:1:8");
}

TEST_CASE("what the reader of TOML asserts on is an error with its place") {
  CHECK(holds(messages_of("a = 1\n[ ="), "x.toml:2:3: error: this is not TOML: key: expected"));
  CHECK(holds(messages_of("a = 1\n[[ ."), "x.toml:2:4: error: this is not TOML: key: expected"));
}

TEST_CASE("nesting ends") {
  // As deep as the limits let it be: tables in tables by dots, in inline tables in arrays.
  const std::string dots = repeated("a.", 126) + "a";
  std::string text = "[" + dots + "]\n" + dots + " = ";
  for (int i = 0; i < 8; ++i) text += "[\n{" + dots + " = ";
  CHECK(!messages_of(text).empty());
  CHECK(holds(messages_of(repeated("[", 20'000)), "error: this is not TOML"));
  CHECK(holds(messages_of("a = " + repeated("[", 20'000)), "error: this is not TOML"));
  CHECK(holds(messages_of("a = " + repeated("{b=", 20'000)), "error: this is not TOML"));
}

TEST_CASE("numbers are as large as TOML has them") {
  const std::string large = "[9223372036854775807, 9223372036854775807]";
  const std::string errors =
      messages_of("scale.type = \"f32\"\nrowwise.block = " + large +
                  "\nrowwise.scale_pad = " + large + "\nrowwise.scale_per = " + large + "\n");
  CHECK(holds(errors, "block " + large + " fits no tile"));
  CHECK(holds(errors, "scale_pad " + large + " is too large"));
}

TEST_CASE("a file that is no spec is not read to its end") {
  const std::string error = messages_of(repeated("# a comment\n", 10'000));
  CHECK(holds(error, "x.toml: error: the file has more than 65536 bytes"));
}

TEST_CASE("many errors are shown up to a number, and in little time") {
  std::string text;
  for (int i = 0; text.size() < 60'000; ++i) text += "k" + std::to_string(i) + "=1\n";
  const auto start = std::chrono::steady_clock::now();
  const std::string errors = messages_of(text);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK(errors.size() < 10'000);
  CHECK(holds(errors, "x.toml:3:1: error: unknown key k2"));
  CHECK(!holds(errors, "x.toml:40:1"));
  CHECK(errors.ends_with(" more errors are not shown\n"));
}

TEST_CASE("a long key, a long word and a long line are cut") {
  const std::string tower(50'000, 'x');
  for (const std::string& text :
       {tower + " = 1\n", "[" + tower + "]\n", "format = \"" + tower + "\"\n",
        "element.type = \"" + tower + "\"\n", "a = " + tower + "\n",
        "element." + tower + " = 1\n"}) {
    const auto start = std::chrono::steady_clock::now();
    const std::string errors = messages_of(text);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
    CHECK(errors.size() < 10'000);
    CHECK(holds(errors, "xxx..."));
  }
}

TEST_CASE("a long line is shown around the place of its error") {
  const Source source{"x.toml", std::string(300, 'a') + "!" + std::string(300, 'b') + "\n"};
  Diagnostics diagnostics(source);
  diagnostics.add({1, 301, 1}, "there");
  CHECK(diagnostics.text() == "x.toml:1:301: error: there\n  1 | ..." + std::string(60, 'a') + "!" +
                                  std::string(99, 'b') + "...\n    |    " + std::string(60, ' ') +
                                  "^\n");
}

TEST_CASE("messages hold nothing that a terminal obeys") {
  const std::string errors =
      messages_of("\"a\\u001b[31mb\" = 1\nelement.type = \"\\u001b\\u0007\\u009b\"\n");
  CHECK(holds(errors, "unknown key a\xef\xbf\xbd[31mb"));
  CHECK(!holds(errors, "\x1b"));
  CHECK(!holds(errors, "\x07"));
  CHECK(!holds(errors, "\xc2\x9b"));
}

TEST_CASE("a named pipe and a device are no specs, and nobody waits for them") {
  const Folder folder;
  const fs::path pipe = folder.path / "x.toml";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const fs::path& path : {pipe, fs::path("/dev/zero")}) {
    std::ostringstream errors;
    CHECK(!load_plans({path.string()}, "", errors));
    CHECK(errors.str() == path.string() + ": error: cannot be read: it is not a file\n1 error\n");
  }
}

TEST_CASE("two specs of one name are an error that names both") {
  const Folder folder;
  const std::string text = text_of(kSource / "spec/mxfp8_e5m2.toml");
  std::vector<std::string> paths;
  for (const char* parent : {"one", "two"}) {
    const fs::path path = folder.path / parent / "mxfp8_e5m2.toml";
    put(path, text);
    paths.push_back(path.string());
  }
  std::ostringstream errors;
  CHECK(!load_plans(paths, "", errors));
  CHECK(holds(errors.str(), paths[1] + ":"));
  CHECK(holds(errors.str(), "error: format \"mxfp8_e5m2\" is that of " + paths[0] + ", too"));
  CHECK(holds(errors.str(), "1 error\n"));
}

}  // namespace
}  // namespace narrowcast::codegen::test
