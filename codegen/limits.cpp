#include "codegen/limits.hpp"

#include <cstdio>

#include "codegen/utf8.hpp"

namespace narrowcast::codegen {
namespace {

// A dot in a key is a table in a table, which the reader of TOML leaves again by recursion: with
// 200,000 of them it runs out of stack.
constexpr int kMostDots = 128;

std::string byte_text(char byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%02x", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

bool is_within_limits(const Source& source, Diagnostics& diagnostics) {
  const size_t before = diagnostics.size();
  if (source.text.size() > kMostBytes) {
    diagnostics.add({}, "the file has more than " + std::to_string(kMostBytes) + " bytes",
                    "a spec is a page of keys: is this one?");
    return false;
  }
  Span at{1, 1, 1};
  int dots = 0;
  for (std::string_view rest = source.text; !rest.empty() && diagnostics.size() == before;) {
    const size_t length = character_length(rest);
    dots += rest[0] == '.' ? 1 : 0;
    if (length == 0) {
      diagnostics.add(at, "byte " + byte_text(rest[0]) + " is not UTF-8",
                      "save the file as UTF-8, or write plain ASCII");
    } else if (dots > kMostDots) {
      diagnostics.add(at, "more than " + std::to_string(kMostDots) + " dots on one line",
                      "a key of a spec has one dot at the most; a long text goes into several "
                      "lines of comment");
    } else if (rest[0] == '\n') {
      at = {at.line + 1, 1, 1};
      dots = 0;
    } else {
      ++at.column;
    }
    rest.remove_prefix(length);
  }
  return diagnostics.size() == before;
}

}  // namespace narrowcast::codegen
