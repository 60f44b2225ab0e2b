// What the generator makes of a text, in memory.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "codegen/products.hpp"

namespace narrowcast::fuzz {

class Target {
 public:
  // `known`: plans that [matmul] may name.
  explicit Target(codegen::Plans known) : known_(std::move(known)) {}

  // Reads and validates the text, derives its plan, and emits all files of it. Returns how many
  // bytes would be printed or written.
  size_t run(const std::string& text);

  uint64_t good() const { return good_; }  // specs so far that had no errors

 private:
  size_t emit(const codegen::Plan& plan);

  codegen::Plans known_;
  std::set<std::string> emitted_;  // facts whose golden bytes, which take long, have been made
  uint64_t good_ = 0;
};

}  // namespace narrowcast::fuzz
