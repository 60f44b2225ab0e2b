// Names that a format cannot have, because its name becomes a C++ namespace, a folder, a plugin's
// file and a Python string.
#pragma once

#include <string_view>

namespace narrowcast::codegen {

// Words of a-z and 0-9, joined by single underscores, beginning with a letter.
bool is_snake_case(std::string_view name);

// A keyword of C++20 or Python 3, or a namespace that the library uses itself. For names in lower
// snake case.
bool is_reserved(std::string_view name);

}  // namespace narrowcast::codegen
