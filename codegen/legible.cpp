#include "codegen/legible.hpp"

#include <algorithm>
#include <vector>

#include "codegen/utf8.hpp"

namespace narrowcast::codegen {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr std::string_view kRest = "...";

// Of a line that is shown in full; of a longer one, so many before the mark, and so many from it
// on.
constexpr size_t kLongestLine = 200, kBefore = 60, kAfter = 100;

// ASCII's, and those of U+0080 to U+009F, which some terminals obey as well.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

// Takes the first character off a text, as it is to be shown.
std::string_view take_character(std::string_view& text, bool keeps_tabs) {
  const size_t length = character_length(text);
  const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
  text.remove_prefix(character.size());
  if (length == 0) return kReplacement;
  if (keeps_tabs && character == "\t") return character;
  return is_control(character) ? kReplacement : character;
}

// The characters of a line that are shown.
struct Window {
  size_t begin, end;
};

Window window_of(size_t count, size_t marked) {
  if (count <= kLongestLine) return {0, count};
  const size_t at = std::min(marked, count), begin = at - std::min(at, kBefore);
  return {begin, std::min(count, begin + kBefore + kAfter)};
}

// Space as wide as the characters before the mark.
std::string space_of(const std::vector<std::string_view>& characters, Window window,
                     size_t marked) {
  std::string space;
  for (size_t i = window.begin; i < std::min(marked, window.end); ++i)
    space += characters[i] == "\t" ? '\t' : ' ';
  if (marked > window.end) space.append(std::min(marked - window.end, kBefore), ' ');
  return space;
}

}  // namespace

std::string legible(std::string_view text, size_t most) {
  std::string result;
  for (size_t count = 0; !text.empty(); ++count) {
    if (count == most) return result.append(kRest);
    result += take_character(text, false);
  }
  return result;
}

Excerpt excerpt_of(std::string_view line, int column, int length) {
  std::vector<std::string_view> characters;
  while (!line.empty()) characters.push_back(take_character(line, true));
  const size_t marked = static_cast<size_t>(std::max(column, 1) - 1);
  const Window window = window_of(characters.size(), marked);

  Excerpt excerpt;
  if (window.begin > 0) excerpt = {std::string(kRest), std::string(kRest.size(), ' ')};
  for (size_t i = window.begin; i < window.end; ++i) excerpt.line += characters[i];
  if (window.end < characters.size()) excerpt.line += kRest;
  const size_t room = window.end > marked ? window.end - marked : 1;
  const size_t wanted = static_cast<size_t>(std::max(length, 1));
  excerpt.mark += space_of(characters, window, marked) + "^";
  excerpt.mark.append(std::min(wanted, room) - 1, '~');
  return excerpt;
}

}  // namespace narrowcast::codegen
