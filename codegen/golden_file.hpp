// The files that keep golden bytes for ever.
#pragma once

#include <filesystem>
#include <ostream>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// Compares the plan's golden bytes with <folder>/<format>.txt, or freezes them there if that file
// is not there yet. Says on `out` what was frozen. False, and a text on `errors`, if the bytes are
// not those of the file. Throws FileError or std::filesystem::filesystem_error if the file system
// refuses.
bool keep_golden(const Plan& plan, const std::filesystem::path& folder, std::ostream& out,
                 std::ostream& errors);

}  // namespace narrowcast::codegen
