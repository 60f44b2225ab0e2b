#include "codegen/diagnostic.hpp"

#include <algorithm>
#include <numeric>

namespace narrowcast::codegen {
namespace {

// Edits that turn `a` into `b`: a letter put in, left out, replaced, or swapped with its neighbour
// (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

// Space under the first characters of a line, so that what follows stands below the character after
// them. A tab stays a tab; a UTF-8 continuation byte takes no column.
std::string space_under(std::string_view line, int columns) {
  std::string space;
  for (const char c : line) {
    const bool continuation = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
    if (continuation) continue;
    if (static_cast<int>(space.size()) == columns) break;
    space += c == '\t' ? '\t' : ' ';
  }
  space.resize(static_cast<size_t>(columns), ' ');
  return space;
}

std::string quoted_line(const Source& source, Span at) {
  const std::string number = std::to_string(at.line);
  const std::string gutter(number.size(), ' ');
  const std::string_view line = source.line(at.line);
  const std::string tail(static_cast<size_t>(std::max(at.length - 1, 0)), '~');
  return "  " + number + " | " + std::string(line) + "\n  " + gutter + " | " +
         space_under(line, at.column - 1) + "^" + tail + "\n";
}

std::string shown(const Source& source, const Diagnostic& diagnostic) {
  const Span at = diagnostic.at;
  std::string text = source.path;
  if (at.line > 0) text += ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
  text += ": error: " + diagnostic.message + "\n";
  if (at.line > 0) text += quoted_line(source, at);
  if (!diagnostic.advice.empty()) text += "  " + diagnostic.advice + "\n";
  return text;
}

}  // namespace

void Diagnostics::add(Span at, std::string message, std::string advice) {
  diagnostics_.push_back({at, std::move(message), std::move(advice)});
}

std::string Diagnostics::text() const {
  std::vector<Diagnostic> ordered = diagnostics_;
  std::stable_sort(ordered.begin(), ordered.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::pair(a.at.line, a.at.column) < std::pair(b.at.line, b.at.column);
  });
  std::string text;
  for (const Diagnostic& diagnostic : ordered) text += shown(source_, diagnostic);
  return text;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    const size_t allowed = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance > allowed || (!best.empty() && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string in_quotes(std::string_view word) { return '"' + std::string(word) + '"'; }

std::string listed(std::span<const std::string_view> items, std::string_view quote) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += i + 1 == items.size() ? " or " : ", ";
    text.append(quote).append(items[i]).append(quote);
  }
  return text;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view quote) {
  const std::string_view guess = nearest(word, candidates);
  if (guess.empty()) return {};
  return std::string("; did you mean ").append(quote).append(guess).append(quote).append("?");
}

std::string choice(std::span<const std::string_view> texts) {
  return "it is " + listed(texts, "\"");
}

}  // namespace narrowcast::codegen
