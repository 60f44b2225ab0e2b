// A look at a shared library's headers before the loader maps it: the loader trusts them, and a
// file that was cut short makes it fault instead of fail.
#pragma once

#include <string>

namespace narrowcast {

// Empty if the file looks like a whole shared library; otherwise a sentence that says what is wrong
// with it.
std::string shared_library_fault(const std::string& path);

}  // namespace narrowcast
