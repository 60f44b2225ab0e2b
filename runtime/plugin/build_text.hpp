// Whether a plugin and this library were built from one text of the C table.
#pragma once

#include <span>
#include <string>

#include "runtime/plugin/note.hpp"

namespace narrowcast {

// Empty, or a sentence that says which version or which structs are others. The first is for the
// note at `offset` of a plugin's file, the second for the table of one that was loaded.
std::string text_fault(std::span<const char> file, size_t offset);
std::string text_fault(const nc_plugin& table);

}  // namespace narrowcast
