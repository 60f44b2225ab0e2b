#include "codegen/limits.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "codegen/utf8.hpp"

namespace narrowcast::codegen {
namespace {

using Offset = std::optional<size_t>;

// A dot in a key is a table in a table, which the reader of TOML leaves again by recursion: with
// 200,000 of them it runs out of stack.
constexpr int kMostDots = 128;

std::string byte_text(char byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%02x", static_cast<unsigned char>(byte));
  return text;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

Span span_at(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line = before.rfind('\n') + 1;  // npos + 1 is 0
  return {static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
          static_cast<int>(columns_of(before.substr(line))) + 1, 1};
}

Offset first_broken_byte(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

Offset first_dot_too_many(std::string_view text) {
  int dots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') dots = 0;
    if (text[at] == '.' && ++dots > kMostDots) return at;
  }
  return std::nullopt;
}

// A piece of TOML: a comment, a text in quotes, or any other byte.
struct Piece {
  size_t length;
  bool may_hold_any_character;
};

// A text of one line, from its opening quote to the closing one, or to the end of the line.
size_t length_of_line(std::string_view text) {
  for (size_t at = 1; at < text.size() && text[at] != '\n'; ++at) {
    if (text[at] == text[0]) return at + 1;
    if (text[at] == '\\' && text[0] == '"') ++at;
  }
  return std::min(text.find('\n'), text.size());
}

// A text of several lines, which ends with three quotes and up to two more that belong to it.
size_t length_of_lines(std::string_view text) {
  constexpr size_t kMostQuotes = 5;
  for (size_t at = 3; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    const size_t quotes = std::min({rest.find_first_not_of(text[0]), rest.size(), kMostQuotes});
    if (quotes >= 3) return at + quotes;
    if (text[at] == '\\' && text[0] == '"') ++at;
  }
  return text.size();
}

// Whether a text may begin behind a byte. Elsewhere, as behind a number, the reader of TOML takes a
// quote and what follows for more of what it has begun.
bool may_end_before_text(char byte) {
  return std::string_view(" \t\r\n=,[{.").find(byte) != std::string_view::npos;
}

Piece piece_of(std::string_view text, char before) {
  if (text[0] == '#') return {std::min(text.find('\n'), text.size()), true};
  if (text.starts_with("\"\"\"") || text.starts_with("'''")) return {length_of_lines(text), false};
  if (text[0] == '"' || text[0] == '\'') return {length_of_line(text), may_end_before_text(before)};
  return {1, false};
}

// The first character that is not ASCII where the reader of TOML, which should refuse it, has
// undefined behaviour: outside of quotes and comments, in texts of several lines, and in texts
// where none can begin.
Offset first_stray_character(std::string_view text) {
  const size_t begin = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  for (size_t at = begin; at < text.size();) {
    const Piece piece = piece_of(text.substr(at), at == begin ? '\n' : text[at - 1]);
    const std::string_view held = text.substr(at, piece.length);
    const auto stray = std::find_if_not(held.begin(), held.end(), is_ascii);
    if (!piece.may_hold_any_character && stray != held.end())
      return at + static_cast<size_t>(stray - held.begin());
    at += piece.length;
  }
  return std::nullopt;
}

}  // namespace

bool is_within_limits(const Source& source, Diagnostics& diagnostics) {
  const std::string_view text = source.text;
  if (text.size() > kMostBytes) {
    diagnostics.add({}, "the file has more than " + std::to_string(kMostBytes) + " bytes",
                    "a spec is a page of keys: is this one?");
    return false;
  }
  if (const Offset at = first_broken_byte(text)) {
    diagnostics.add(span_at(text, *at), "byte " + byte_text(text[*at]) + " is not UTF-8",
                    "save the file as UTF-8, or write plain ASCII");
    return false;
  }
  if (const Offset at = first_dot_too_many(text)) {
    diagnostics.add(
        span_at(text, *at), "more than " + std::to_string(kMostDots) + " dots on one line",
        "a key has one dot at the most; a long text goes into several lines of comment");
    return false;
  }
  if (const Offset at = first_stray_character(text)) {
    const std::string_view rest = text.substr(*at);
    diagnostics.add(span_at(text, *at),
                    in_quotes(rest.substr(0, character_length(rest))) + " is not ASCII",
                    "other characters stand in comments, and on one line between a pair of quotes");
    return false;
  }
  return true;
}

}  // namespace narrowcast::codegen
