// Pieces of C++ that must be broken to fit 100 columns, broken where clang-format would break them.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

inline constexpr size_t kLineWidth = 100;

// `// text`, filled to the line width for a comment that stands `indent` columns from the margin.
// No line break at the end; empty for an empty text.
std::string comment(std::string_view text, size_t indent);

// `head = value;`, with the value on a line of its own if the whole does not fit.
std::string assignment(std::string_view head, std::string_view value, size_t indent);

// `head { body }` on one line if it fits, else on three.
std::string short_function(std::string_view head, std::string_view body, size_t indent);

// `.field = "text",`, the text escaped, and in pieces if it is long. `nullptr` for an absent text
// is the caller's.
std::string string_member(std::string_view field, std::string_view text, size_t indent);

// `head = "text";` for a long text without spaces: on one line if it fits, else in pieces of
// `piece` characters, a line each.
std::string string_constant(std::string_view head, std::string_view text, size_t piece,
                            size_t indent);

}  // namespace narrowcast::codegen
