// A spec file as text.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

// The path as the user wrote it, and what the file holds.
struct Source {
  std::string path;
  std::string text;

  std::string file() const;                 // the file's name without folder
  std::string stem() const;                 // the file's name without folder and extension
  std::string_view line(int number) const;  // without its line break; empty beyond the end
};

// What a file holds, or its first part, which is then too long for a spec. False, and why not, if
// it cannot be read: it is not there, is no file, or may not be read. Never waits, as a named pipe
// would have it.
bool load(const std::string& path, Source& source, std::string& reason);

}  // namespace narrowcast::codegen
