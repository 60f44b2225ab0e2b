// How a generated file says where it comes from, and how the generator knows its own files again.
#pragma once

#include <string>

namespace narrowcast::codegen {

// Begins the origin of every file that is made of a spec of the source tree.
inline std::string made_from_tree(const std::string& format) {
  return "Made from spec/" + format + ".toml;";
}

// The same of a spec that lies elsewhere.
inline std::string made_outside(const std::string& format) {
  return "Made from " + format + ".toml;";
}

// The whole. A folder's name does not tell which of the two a spec is: a user's may be called spec
// as well. The source tree alone is generated with all of its formats at once.
inline std::string origin_in_tree(const std::string& format) {
  return made_from_tree(format) + " edit that and run `make regenerate`.";
}
inline std::string origin_outside(const std::string& format) {
  return made_outside(format) + " edit that and run `narrowcast build`.";
}

}  // namespace narrowcast::codegen
