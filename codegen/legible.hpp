// What a user wrote, as messages show it: whatever it holds, and however long it is.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

// The text up to so many characters, with "..." for the rest. What a terminal would obey or a
// reader of UTF-8 stumble over becomes U+FFFD: control characters, a tab among them, and broken
// bytes.
std::string legible(std::string_view text, size_t most);

// A line of a spec, and below it a mark under some of its characters.
struct Excerpt {
  std::string line;  // or, of a long one, what stands around the mark, with "..." for the rest
  std::string mark;  // "    ^~~~"
};

// The mark stands under `length` characters from `column` on, which is counted from 1; one
// character at least, and none beyond the excerpt. Tabs stay tabs, so that the mark stands where
// they put it.
Excerpt excerpt_of(std::string_view line, int column, int length);

}  // namespace narrowcast::codegen
