#include "codegen/reserved_words.hpp"

#include <algorithm>

namespace narrowcast::codegen {
namespace {

constexpr std::string_view kCppWords[] = {
    "alignas",       "alignof",     "and",       "and_eq",    "asm",       "auto",
    "bitand",        "bitor",       "bool",      "break",     "case",      "catch",
    "char",          "class",       "co_await",  "co_return", "co_yield",  "compl",
    "concept",       "const",       "consteval", "constexpr", "constinit", "const_cast",
    "continue",      "decltype",    "default",   "delete",    "do",        "double",
    "dynamic_cast",  "else",        "enum",      "explicit",  "export",    "extern",
    "false",         "float",       "for",       "friend",    "goto",      "if",
    "inline",        "int",         "long",      "mutable",   "namespace", "new",
    "noexcept",      "not",         "not_eq",    "nullptr",   "operator",  "or",
    "or_eq",         "private",     "protected", "public",    "register",  "reinterpret_cast",
    "requires",      "return",      "short",     "signed",    "sizeof",    "static",
    "static_assert", "static_cast", "struct",    "switch",    "template",  "this",
    "thread_local",  "throw",       "true",      "try",       "typedef",   "typeid",
    "typename",      "union",       "unsigned",  "using",     "virtual",   "void",
    "volatile",      "while",       "xor",       "xor_eq"};

constexpr std::string_view kPythonWords[] = {"as",       "assert", "async",  "await",   "def",
                                             "del",      "elif",   "except", "finally", "from",
                                             "global",   "import", "in",     "is",      "lambda",
                                             "nonlocal", "pass",   "raise",  "with",    "yield"};

// Namespaces, macros and build targets that a format would run into.
constexpr std::string_view kOwnWords[] = {"all",        "avx2",    "avx512", "baseline", "clean",
                                          "codegen",    "cuda",    "help",   "install",  "linux",
                                          "narrowcast", "package", "std",    "test",     "unix"};

bool is_word_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

template <size_t kCount>
bool contains(const std::string_view (&words)[kCount], std::string_view name) {
  return std::find(std::begin(words), std::end(words), name) != std::end(words);
}

}  // namespace

bool is_snake_case(std::string_view name) {
  if (name.empty() || name.front() < 'a' || name.front() > 'z' || name.ends_with('_')) return false;
  if (name.find("__") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return is_word_letter(c) || c == '_'; });
}

bool is_reserved(std::string_view name) {
  return contains(kCppWords, name) || contains(kPythonWords, name) || contains(kOwnWords, name);
}

}  // namespace narrowcast::codegen
