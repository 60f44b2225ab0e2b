// A spec file as text.
#pragma once

#include <string>
#include <string_view>

namespace narrowcast::codegen {

// The path as the user wrote it, and what the file holds.
struct Source {
  std::string path;
  std::string text;

  std::string stem() const;                 // the file's name without folder and extension
  bool in_tree() const;                     // in a folder named spec, as those of the source tree
  std::string_view line(int number) const;  // without its line break; empty beyond the end
};

// False if the file cannot be read.
bool load(const std::string& path, Source& source);

}  // namespace narrowcast::codegen
