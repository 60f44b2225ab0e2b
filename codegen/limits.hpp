// What a file must be before it is read as TOML: no text of a spec, and nothing that the reader of
// TOML cannot bear.
#pragma once

#include <cstddef>

#include "codegen/diagnostic.hpp"

namespace narrowcast::codegen {

inline constexpr size_t kMostBytes = 65'536;

// False, and a diagnostic, for a file that is too long, not UTF-8, has too many dots on a line, or
// characters beyond ASCII where TOML has none.
bool is_within_limits(const Source& source, Diagnostics& diagnostics);

}  // namespace narrowcast::codegen
