// Characters of a text in UTF-8.
#pragma once

#include <string_view>

namespace narrowcast::codegen {

// The bytes of the character that a text begins with; 0 if it is empty, or begins with what is no
// UTF-8 (RFC 3629: nothing overlong, no surrogates, nothing beyond U+10FFFF).
size_t character_length(std::string_view text);

// A byte that begins a character, or stands for itself; of valid UTF-8, one for each character.
inline bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// The characters of a text, each of which takes one column.
size_t columns_of(std::string_view text);

}  // namespace narrowcast::codegen
