// How a generated file says where it comes from, and how to change it.
#pragma once

#include <string>

namespace narrowcast::codegen {

// Of a spec of the source tree. tools/regenerate.py knows its files by this sentence.
inline std::string origin_in_tree(const std::string& spec) {
  return "Made from spec/" + spec + ".toml; edit that and run `make regenerate`.";
}

// Of a spec that lies elsewhere. The folder's name does not tell which of the two a spec is: a
// user's may be called spec as well.
inline std::string origin_outside(const std::string& format) {
  return "Made from " + format + ".toml; edit that and run `narrowcast build`.";
}

}  // namespace narrowcast::codegen
