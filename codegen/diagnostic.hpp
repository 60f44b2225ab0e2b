// What is wrong with a spec: collected while it is read and checked, shown together, each with its
// line and a caret.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/format.hpp"
#include "codegen/source.hpp"

namespace narrowcast::codegen {

struct Diagnostic {
  Span at;
  std::string message;  // what is wrong, with the value
  std::string advice;   // what to write instead, or why; may be empty
};

// The diagnostics of one spec file.
class Diagnostics {
 public:
  explicit Diagnostics(const Source& source) : source_(source) {}

  void add(Span at, std::string message, std::string advice = {});
  bool empty() const { return diagnostics_.empty(); }
  size_t size() const { return diagnostics_.size(); }
  const Source& source() const { return source_; }

  // All of them in the order of the file: `path:line:column: error: message`, the line, a caret,
  // the advice.
  std::string text() const;

 private:
  const Source& source_;
  std::vector<Diagnostic> diagnostics_;
};

// The candidate that a misspelt word most likely meant: the fewest single-letter edits (a swap of
// neighbours is one), at most a third of the longer word's letters. Empty if none is that near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

std::string in_quotes(std::string_view word);

// a, b or c, each in the given quotes.
std::string listed(std::span<const std::string_view> items, std::string_view quote);

// "; did you mean x?" with the nearest candidate in the given quotes; empty if none is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view quote);

// "it is "a", "b" or "c"".
std::string choice(std::span<const std::string_view> texts);

}  // namespace narrowcast::codegen
