// Spec file to Format. What cannot be read becomes a diagnostic and an unreadable field; reading
// goes on to the end, so that one run shows every error.
#pragma once

#include "codegen/diagnostic.hpp"
#include "codegen/format.hpp"

namespace narrowcast::codegen {

// Reads a spec of vocabulary 1. A file that is not TOML, or nothing that could be (limits.hpp),
// gives one diagnostic and a Format without a known field.
Format read(const Source& source, Diagnostics& diagnostics);

}  // namespace narrowcast::codegen
