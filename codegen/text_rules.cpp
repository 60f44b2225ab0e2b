#include "codegen/text_rules.hpp"

#include <algorithm>

namespace narrowcast::codegen {
namespace {

constexpr size_t kLongestName = 40;

// Words of a-z and 0-9, joined by single underscores, beginning with a letter.
bool is_snake_case(std::string_view name) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  if (name.empty() || !is_lower(name.front()) || name.ends_with('_')) return false;
  if (name.find("__") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

// Text that is shown as it is: no control characters, those of two bytes among them, and something
// to be seen.
bool one_line(std::string_view text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) return false;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const bool is_of_two_bytes =
        text[i] == '\xc2' && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (is_of_two_bytes) return false;
  }
  return text.find_first_not_of(' ') != std::string_view::npos;
}

// A full stop behind a word of three letters and more, and a capital after it: "such as e.g.
// NVIDIA" is no end.
bool two_sentences(std::string_view text) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  for (size_t i = 3; i + 2 < text.size(); ++i) {
    const bool word_ends =
        text[i] == '.' && is_lower(text[i - 1]) && is_lower(text[i - 2]) && is_lower(text[i - 3]);
    if (word_ends && text[i + 1] == ' ' && text[i + 2] >= 'A' && text[i + 2] <= 'Z') return true;
  }
  return false;
}

}  // namespace

void vocabulary_is_known(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.vocabulary) || format.vocabulary.value == 1) return;
  diagnostics.add(format.vocabulary.at,
                  "vocabulary " + std::to_string(format.vocabulary.value) + " is not known",
                  "this generator reads vocabulary 1; a later narrowcast may know more");
}

// The name becomes a part of a namespace, a folder, a plugin's file, and a string in Python.
void name_is_an_identifier(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.name) || is_snake_case(format.name.value)) return;
  diagnostics.add(format.name.at,
                  "format " + in_quotes(format.name.value) + " is not in lower snake case",
                  "words of a-z and 0-9, joined by single underscores, beginning with a letter");
}

// No [matmul] could name such a format. All other words are free: generated C++ has a namespace
// that nothing else is called.
void name_is_not_self(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.name) || format.name.value != kSelf) return;
  diagnostics.add(format.name.at,
                  "format " + in_quotes(kSelf) +
                      " is the word by which [matmul] names the "
                      "spec's own format",
                  "add a word to it, such as " + in_quotes("self_scaled"));
}

void name_is_short(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.name) || format.name.value.size() <= kLongestName) return;
  diagnostics.add(format.name.at,
                  "format " + in_quotes(format.name.value) + " has " +
                      std::to_string(format.name.value.size()) + " letters",
                  "at most 40, so that lists and lines of code have room for it");
}

void name_is_the_file_name(const Format& format, Diagnostics& diagnostics) {
  const std::string file = diagnostics.source().file();
  if (!known(format.name) || format.name.value + ".toml" == file) return;
  diagnostics.add(
      format.name.at,
      "format " + in_quotes(format.name.value) + " stands in a file named " + quote_of(file),
      "rename one of them: a format is looked up by the name of its file");
}

void summary_is_one_sentence(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.summary)) return;
  const std::string& summary = format.summary.value;
  if (one_line(summary) && !two_sentences(summary)) return;
  diagnostics.add(format.summary.at, "summary is not one sentence on one line",
                  "lists show it beside the name; more belongs in a comment");
}

void reference_is_one_line(const Format& format, Diagnostics& diagnostics) {
  if (!known(format.reference)) return;
  if (one_line(format.reference.value)) return;
  diagnostics.add(format.reference.at, "reference is not a text on one line",
                  "it names the paper or standard that says what the bytes mean");
}

}  // namespace narrowcast::codegen
