// What a plugin's file must be before anything of it runs.
#pragma once

#include <span>
#include <string>

namespace narrowcast {

// Empty if the file is a plugin of this library's text, and as it was built; otherwise a sentence
// that says what is wrong with it, and what to do.
std::string file_fault(std::span<const char> file);

// The same of the file that a path names, which need not be one.
std::string plugin_fault(const std::string& path);

}  // namespace narrowcast
