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

}  // namespace narrowcast::codegen
