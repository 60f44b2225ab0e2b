// One table of a spec file, read key by key.
#pragma once

#include <algorithm>
#include <set>

#include "codegen/diagnostic.hpp"
#include "codegen/format.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_MAX_NESTED_VALUES 16
// toml++ asserts, on some malformed text, what it then reports itself ("[ ="): it is compiled
// without asserts, and without assuming that they hold.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace narrowcast::codegen {

inline constexpr std::string_view kTensorWord = "tensor";
inline constexpr const char* kBlockChoice = "it is [rows, columns] or \"tensor\"";
inline const toml::table kNoKeys;

inline Span span_of(const toml::source_region& region) {
  const bool one_line = region.begin.line == region.end.line;
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column),
          one_line ? static_cast<int>(region.end.column - region.begin.column) : 1};
}

// One table of the spec. Each key that the vocabulary has is popped once; what is then left over is
// an error, and the popped names are what it may have meant.
class TableReader {
 public:
  TableReader(const toml::table& table, std::string prefix, Span at, Diagnostics& diagnostics)
      : table_(&table), prefix_(std::move(prefix)), at_(at), diagnostics_(diagnostics) {}

  // A table whose keys cannot be known, for a reason that has been reported: its fields are
  // unreadable, and none is missing.
  TableReader(Span at, Diagnostics& diagnostics) : TableReader(kNoKeys, "", at, diagnostics) {
    unreadable_ = true;
  }

  // The table of a key; one without keys if it is left out.
  TableReader table(std::string_view key) {
    const toml::node* node = pop(key);
    const std::string prefix = path(key) + ".";
    if (node == nullptr)
      return unreadable_ ? *this : TableReader(kNoKeys, prefix, at_, diagnostics_);
    const Span at = span_of(node->source());
    if (const toml::table* table = node->as_table()) return {*table, prefix, at, diagnostics_};
    diagnostics_.add(at, path(key) + " must be a table of keys",
                     "write [" + path(key) + "] on a line of its own, and its keys below it");
    return {at, diagnostics_};
  }

  bool has(std::string_view key) const { return table_->contains(key); }

  Field<std::string> text(std::string_view key) {
    const toml::node* node = pop(key);
    if (node == nullptr) return missing<std::string>(key);
    if (const auto* value = node->as_string()) return given(value->get(), *node);
    return wrong<std::string>(*node, path(key) + " must be a text in double quotes");
  }

  Field<int64_t> integer(std::string_view key) {
    const toml::node* node = pop(key);
    if (node == nullptr) return missing<int64_t>(key);
    if (const auto* value = node->as_integer()) return given(value->get(), *node);
    return wrong<int64_t>(*node, path(key) + " must be a whole number");
  }

  Field<bool> flag(std::string_view key, const Field<bool>& fallback) {
    const toml::node* node = pop(key);
    if (node == nullptr) return by_default(fallback);
    if (const auto* value = node->as_boolean()) return given(value->get(), *node);
    return wrong<bool>(*node, path(key) + " must be true or false");
  }

  template <class Value>
  Field<Value> word(std::string_view key) {
    const toml::node* node = pop(key);
    return node == nullptr ? missing<Value>(key, choice(texts_of<Value>()))
                           : word_of_node<Value>(*node, key);
  }

  template <class Value>
  Field<Value> word_or(std::string_view key, Value fallback) {
    const toml::node* node = pop(key);
    return node == nullptr ? by_default(Field<Value>{fallback}) : word_of_node<Value>(*node, key);
  }

  // `[rows, columns]`, or "tensor".
  Field<Block> block(std::string_view key) {
    const toml::node* node = pop(key);
    if (node == nullptr) return missing<Block>(key, kBlockChoice);
    const auto* value = node->as_string();
    if (value == nullptr) return pair(*node, key, "[rows, columns] or \"tensor\"");
    if (value->get() == kTensorWord) return given(kTensorBlock, *node);
    return wrong<Block>(*node,
                        path(key) + " cannot be " + in_quotes(value->get()) +
                            did_you_mean(value->get(), {&kTensorWord, 1}, "\""),
                        kBlockChoice);
  }

  Field<Block> pair_or(std::string_view key, const Field<Block>& fallback) {
    const toml::node* node = pop(key);
    return node == nullptr ? by_default(fallback) : pair(*node, key, "[rows, columns]");
  }

  // To be called when every key has been popped.
  void finish() {
    std::vector<std::string_view> keys, absent;
    for (const std::string_view key : popped_) {
      keys.push_back(key);
      if (!has(key)) absent.push_back(key);
    }
    const std::string owner =
        prefix_.empty() ? "a spec" : "[" + prefix_.substr(0, prefix_.size() - 1) + "]";
    const std::vector<const toml::key*> unknown = unknown_keys();
    const size_t shown = std::min(unknown.size(), Diagnostics::kMostShown);
    for (size_t i = 0; i < shown; ++i) {
      const std::string_view key = unknown[i]->str();
      std::string guess = did_you_mean(key, absent, "");
      if (guess.empty()) guess = did_you_mean(key, keys, "");
      diagnostics_.add(span_of(unknown[i]->source()), "unknown key " + path(quote_of(key)) + guess,
                       owner + " may have " + listed(keys, ""));
    }
    diagnostics_.count(unknown.size() - shown);
  }

 private:
  const toml::node* pop(std::string_view key) {
    popped_.insert(key);
    return table_->get(key);
  }

  // In the order of the file.
  std::vector<const toml::key*> unknown_keys() const {
    std::vector<const toml::key*> unknown;
    for (const auto& [key, node] : *table_) {
      if (!popped_.contains(key.str())) unknown.push_back(&key);
    }
    std::ranges::sort(unknown, {}, [](const toml::key* key) {
      const toml::source_position at = key->source().begin;
      return std::pair(at.line, at.column);
    });
    return unknown;
  }

  std::string path(std::string_view key) const { return prefix_ + std::string(key); }

  template <class Value>
  Field<Value> wrong(const toml::node& node, std::string message, std::string advice = {}) {
    const Span at = span_of(node.source());
    diagnostics_.add(at, std::move(message), std::move(advice));
    return {{}, at, Origin::kUnreadable};
  }

  template <class Value>
  Field<Value> missing(std::string_view key, std::string advice = {}) {
    if (!unreadable_) {
      diagnostics_.add(at_, "required key " + path(key) + " is missing", std::move(advice));
    }
    return {{}, at_, Origin::kUnreadable};
  }

  template <class Value>
  static Field<Value> given(Value value, const toml::node& node) {
    return {std::move(value), span_of(node.source()), Origin::kGiven};
  }

  // The value and trustworthiness of the fallback, at this table. A fallback may be another field
  // that could not be read.
  template <class Value>
  Field<Value> by_default(const Field<Value>& fallback) const {
    const bool known = fallback.known() && !unreadable_;
    return {fallback.value, at_, known ? Origin::kDefault : Origin::kUnreadable};
  }

  template <class Value>
  Field<Value> word_of_node(const toml::node& node, std::string_view key) {
    const auto* value = node.as_string();
    if (value == nullptr) {
      return wrong<Value>(node, path(key) + " must be a word in double quotes",
                          choice(texts_of<Value>()));
    }
    for (const auto& word : words(Value{})) {
      if (word.text == value->get()) return given(word.value, node);
    }
    return wrong<Value>(node,
                        path(key) + " cannot be " + in_quotes(value->get()) +
                            did_you_mean(value->get(), texts_of<Value>(), "\""),
                        choice(texts_of<Value>()));
  }

  Field<Block> pair(const toml::node& node, std::string_view key, const std::string& form) {
    const toml::array* array = node.as_array();
    const bool two_integers =
        array != nullptr && array->size() == 2 && array->is_homogeneous<int64_t>();
    if (!two_integers) return wrong<Block>(node, path(key) + " must be " + form);
    const Block value{**array->get_as<int64_t>(0), **array->get_as<int64_t>(1)};
    if (value.rows < 1 || value.columns < 1) {
      return wrong<Block>(node, path(key) + " must have positive numbers, not [" +
                                    std::to_string(value.rows) + ", " +
                                    std::to_string(value.columns) + "]");
    }
    return given(value, node);
  }

  const toml::table* table_;
  std::string prefix_;  // empty, or `rowwise.`
  Span at_;
  Diagnostics& diagnostics_;
  std::set<std::string_view> popped_;
  bool unreadable_ =
      false;  // a value stands where the table should: reported, and nothing in it is missing
};

}  // namespace narrowcast::codegen
