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
  // Of a file. Whoever has more to say of one table may count() the rest.
  static constexpr size_t kMostShown = 20;

  explicit Diagnostics(const Source& source) : source_(source) {}

  void add(Span at, std::string message, std::string advice = {});
  void count(size_t errors) { counted_ += errors; }
  bool empty() const { return size() == 0; }
  size_t size() const { return diagnostics_.size() + counted_; }
  const Source& source() const { return source_; }

  // The first of them in the order of the file: `path:line:column: error: message`, the line, a
  // caret, the advice. Then how many more there are.
  std::string text() const;

 private:
  const Source& source_;
  std::vector<Diagnostic> diagnostics_;
  size_t counted_ = 0;  // and not kept
};

// The candidate that a misspelt word most likely meant: the fewest single-letter edits (a swap of
// neighbours is one), at most a third of the longer word's letters. Empty if none is that near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// What a user wrote, cut where it is long, and legible; with quotes, or where it stands without.
std::string in_quotes(std::string_view word);
std::string quote_of(std::string_view text);

// a, b or c, each in the given quotes.
std::string listed(std::span<const std::string_view> items, std::string_view quote);

// "; did you mean x?" with the nearest candidate in the given quotes; empty if none is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view quote);

// "it is "a", "b" or "c"".
std::string choice(std::span<const std::string_view> texts);

}  // namespace narrowcast::codegen
