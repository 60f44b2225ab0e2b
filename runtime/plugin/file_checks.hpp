// What a plugin's file must be before anything of it runs.
#pragma once

#include <span>
#include <string>

namespace narrowcast {

// Empty if the file is a plugin of this library's text, and as it was built; otherwise a sentence
// that says what is wrong with it, and what to do.
std::string file_fault(std::span<const char> file);

}  // namespace narrowcast
