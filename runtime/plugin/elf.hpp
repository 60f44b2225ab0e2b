// A shared library's file, read and not mapped: its bytes, and where its note is. The system's
// loader trusts headers, so that a damaged file makes it fault instead of fail; here every offset
// is held against the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace narrowcast {

// Empty, or a sentence that says why the file cannot be read.
std::string read_file(const std::string& path, std::vector<char>& bytes);

struct NoteSearch {
  std::string fault;  // empty, or a sentence that says what is wrong with the file
  size_t offset = 0;  // of a whole NoteHead in it
};
NoteSearch find_note(std::span<const char> file);

inline bool lies_within(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;  // no sum, which could overflow
}

// A struct of the file, which lies_within it, and nowhere need be aligned.
template <class Struct>
Struct struct_at(std::span<const char> file, size_t offset) {
  Struct result;
  std::memcpy(&result, file.data() + offset, sizeof(result));
  return result;
}

}  // namespace narrowcast
