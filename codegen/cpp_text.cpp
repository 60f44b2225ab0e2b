#include "codegen/cpp_text.hpp"

#include <algorithm>
#include <sstream>
#include <vector>

#include "codegen/utf8.hpp"

namespace narrowcast::codegen {
namespace {

bool fits(std::string_view text, size_t indent) { return indent + columns_of(text) <= kLineWidth; }

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool begins_trigraph = c == '?' && result.ends_with('?');
    if (c == '"' || c == '\\' || begins_trigraph) result += '\\';
    result += c;
  }
  return result;
}

// The bytes of the character at a place, or of the escape that begins there: what a line break must
// not divide.
size_t unit_length(std::string_view text, size_t at) {
  size_t end = at + (text[at] == '\\' ? 2 : 1);
  while (end < text.size() && !starts_character(text[end])) ++end;
  return std::min(end, text.size()) - at;
}

// As much of the text as fits: up to and with the last space, or, in a word longer than the line,
// up to the last whole unit.
size_t length_of_piece(std::string_view text, size_t width) {
  size_t columns = 0, after_space = 0, length = 0;
  while (length < text.size()) {
    const std::string_view unit = text.substr(length, unit_length(text, length));
    columns += columns_of(unit);
    if (columns > width) return after_space > 0 ? after_space : length;
    length += unit.size();
    if (unit == " ") after_space = length;
  }
  return length;
}

std::vector<std::string_view> pieces_of(std::string_view text, size_t width) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    pieces.push_back(text.substr(0, length_of_piece(text, width)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

}  // namespace

std::string comment(std::string_view text, size_t indent) {
  std::string result;
  for (std::string_view piece : pieces_of(text, kLineWidth - indent - 3)) {
    while (piece.ends_with(' ')) piece.remove_suffix(1);
    if (!result.empty()) result += '\n';
    result.append("// ").append(piece);
  }
  return result;
}

std::string with_string(const StringPlace& place, std::string_view text, size_t indent) {
  const std::string literal = escaped(text);
  const std::string line = place.before + " \"" + literal + "\"" + place.after;
  if (fits(line, indent)) return line;
  const size_t quotes = 2;
  const size_t room = kLineWidth - indent - place.hang - quotes - place.after.size();
  std::string result = place.before;
  for (const std::string_view piece : pieces_of(literal, std::min(room, place.most))) {
    result.append("\n").append(place.hang, ' ');
    result.append("\"").append(piece).append("\"");
  }
  return result + place.after;
}

std::string number(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace narrowcast::codegen
