// The seal of a plugin's file: its size and a checksum of all its bytes, in its note. It tells a
// file that is as it was built from one that was damaged. It is no signature: whoever changes a
// file on purpose can seal it again.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace narrowcast {

// `note` is where find_note() found it.
void seal(std::span<char> file, size_t note);

// Empty if the file is as it was sealed; otherwise a sentence that says what is wrong, and what to
// do.
std::string seal_fault(std::span<const char> file, size_t note);

}  // namespace narrowcast
