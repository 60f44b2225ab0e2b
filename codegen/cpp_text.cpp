#include "codegen/cpp_text.hpp"

#include <sstream>

namespace narrowcast::codegen {
namespace {

std::string escaped(std::string_view text, std::string_view special) {
  std::string result = "\"";
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result + '"';
}

}  // namespace

std::string comment(std::string_view text) { return text.empty() ? "" : "// " + std::string(text); }

std::string quoted(std::string_view text) { return escaped(text, "\"\\?"); }  // ??/ is a trigraph

std::string json_string(std::string_view text) { return escaped(text, "\"\\"); }

std::string number(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace narrowcast::codegen
