// Rules across the keys of a spec: what the vocabulary can say, but no format can be.
#pragma once

#include <optional>
#include <span>

#include "codegen/diagnostic.hpp"
#include "codegen/format.hpp"

namespace narrowcast::codegen {

// A rule adds a diagnostic for each violation that it finds, and none if a field that it reads is
// not known().
struct Rule {
  std::string_view name;
  void (*check)(const Format&, Diagnostics&);
  std::optional<Kind> kind = {};  // of the formats that it is for; none: for all
};

// In the order of checking. tests/codegen/bad/ has a wrong spec for each, of the rule's name.
std::span<const Rule> rules();

void validate(const Format& format, Diagnostics& diagnostics);

}  // namespace narrowcast::codegen
