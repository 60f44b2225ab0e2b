#include "codegen/utf8.hpp"

#include <algorithm>

namespace narrowcast::codegen {
namespace {

// What may begin a character: so many bytes, of which the second is restricted.
struct Lead {
  unsigned char first, last;  // of the first byte
  unsigned char second_from, second_to;
  size_t length;
};

constexpr Lead kLeads[] = {
    {0xc2, 0xdf, 0x80, 0xbf, 2},                               // below are overlong forms of ASCII
    {0xe0, 0xe0, 0xa0, 0xbf, 3},                               // not overlong
    {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},  // no surrogates
    {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},  // not overlong
    {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},  // up to U+10FFFF
};

bool lies(char c, unsigned char from, unsigned char to) {
  const auto byte = static_cast<unsigned char>(c);
  return from <= byte && byte <= to;
}

}  // namespace

size_t character_length(std::string_view text) {
  if (text.empty()) return 0;
  if (lies(text[0], 0, 0x7f)) return 1;
  for (const Lead& lead : kLeads) {
    if (!lies(text[0], lead.first, lead.last)) continue;
    if (text.size() < lead.length || !lies(text[1], lead.second_from, lead.second_to)) return 0;
    const std::string_view rest = text.substr(2, lead.length - 2);
    const bool whole =
        std::all_of(rest.begin(), rest.end(), [](char c) { return !starts_character(c); });
    return whole ? lead.length : 0;
  }
  return 0;
}

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

}  // namespace narrowcast::codegen
