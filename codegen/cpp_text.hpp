// Comments, literals and JSON strings. Lines of generated code are as long as they come: what is
// committed is formatted by clang-format (tools/regenerate.py).
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

// `// text`; empty for an empty text.
std::string comment(std::string_view text);

// A string literal of C++.
std::string quoted(std::string_view text);

// A string of JSON, which may hold any UTF-8 but no control characters.
std::string json_string(std::string_view text);

// A literal that reads back as the same bits, in C++ as in JSON.
std::string number(double value);

}  // namespace narrowcast::codegen
