// Comments and string literals, broken to fit 100 columns where clang-format would break them. All
// else that is generated has a form that always fits.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

inline constexpr size_t kLineWidth = 100;

// `// text`, filled to the line width for a comment that stands `indent` columns from the margin.
// No line break at the end; empty for an empty text.
std::string comment(std::string_view text, size_t indent);

// Where a string literal stands.
struct StringPlace {
  std::string before, after;  // what shares its line: `.field =` and `,`
  size_t hang = 4;            // what the pieces of a broken one are indented by
  size_t most = kLineWidth;   // characters of a piece
};

// `before "text" after` on one line if it fits; else the text, escaped, in pieces below `before`.
std::string with_string(const StringPlace& place, std::string_view text, size_t indent);

// A literal that reads back as the same bits.
std::string number(double value);

}  // namespace narrowcast::codegen
