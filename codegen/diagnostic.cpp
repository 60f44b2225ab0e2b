#include "codegen/diagnostic.hpp"

#include <algorithm>
#include <numeric>

#include "codegen/legible.hpp"

namespace narrowcast::codegen {
namespace {

// In characters. No message of the generator is that long, but for what a user wrote.
constexpr size_t kLongestMessage = 500, kLongestQuote = 80;

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

std::string quoted_line(const Source& source, Span at) {
  const std::string number = std::to_string(at.line);
  const std::string gutter(number.size(), ' ');
  const Excerpt excerpt = excerpt_of(source.line(at.line), at.column, at.length);
  return "  " + number + " | " + excerpt.line + "\n  " + gutter + " | " + excerpt.mark + "\n";
}

std::string shown(const Source& source, const Diagnostic& diagnostic) {
  const Span at = diagnostic.at;
  std::string text = source.path;
  if (at.line > 0) text += ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
  text += ": error: " + legible(diagnostic.message, kLongestMessage) + "\n";
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
  const size_t count = std::min(ordered.size(), kMostShown);
  for (size_t i = 0; i < count; ++i) text += shown(source_, ordered[i]);
  if (const size_t more = size() - count; more > 0) {
    text += source_.path + ": " + std::to_string(more) +
            (more == 1 ? " more error is" : " more errors are") + " not shown\n";
  }
  return text;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    const size_t allowed = std::max<size_t>(1, longer / 3);
    if (longer - shorter > allowed) continue;  // so the cost does not grow with a long word
    const size_t distance = edit_distance(word, candidate);
    if (distance > allowed || (!best.empty() && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string in_quotes(std::string_view word) { return '"' + quote_of(word) + '"'; }

std::string quote_of(std::string_view text) { return legible(text, kLongestQuote); }

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
