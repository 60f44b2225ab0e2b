#include "codegen/printer.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace narrowcast::codegen {
namespace {

[[noreturn]] void fail(const std::string& what, const Caller& at) {
  throw std::logic_error(std::string(at.file) + ":" + std::to_string(at.line) + ": template " +
                         what);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

size_t indentation(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool blank(std::string_view line) { return indentation(line) == line.size(); }

// The lines between the quotes, without their common margin.
std::vector<std::string_view> body_of(std::string_view text) {
  std::vector<std::string_view> lines = lines_of(text);
  if (lines.size() > 1 && blank(lines.front())) lines.erase(lines.begin());
  if (lines.size() > 1 && blank(lines.back())) lines.pop_back();
  size_t margin = std::string_view::npos;
  for (const std::string_view line : lines) {
    if (!blank(line)) margin = std::min(margin, indentation(line));
  }
  for (std::string_view& line : lines) line.remove_prefix(std::min(margin, line.size()));
  return lines;
}

// A value of several lines, all but the first of them indented.
std::string indented(std::string_view value, size_t columns) {
  std::string text;
  for (const char c : value) {
    text += c;
    if (c == '\n') text.append(columns, ' ');
  }
  return text;
}

std::string fill_line(std::string_view line, const Values& values, const Caller& at) {
  std::string filled;
  const size_t column = indentation(line);
  while (true) {
    const size_t open = line.find('$');
    filled += line.substr(0, open);
    if (open == std::string_view::npos) return filled;
    const size_t close = line.find('$', open + 1);
    if (close == std::string_view::npos) fail("has a '$' without its end", at);
    const std::string_view hole = line.substr(open + 1, close - open - 1);
    const auto value = values.find(hole);
    if (hole.empty()) {
      filled += '$';
    } else if (value == values.end()) {
      fail("has no value for $" + std::string(hole) + "$", at);
    } else {
      filled += indented(value->second, column);
    }
    line.remove_prefix(close + 1);
  }
}

// Values of several lines may hold empty ones, which must not become trailing spaces.
std::string without_trailing_spaces(std::string_view text) {
  std::string trimmed;
  for (const std::string_view line : lines_of(text)) {
    trimmed += line.substr(0, line.find_last_not_of(' ') + 1);
    trimmed += '\n';
  }
  return trimmed;
}

}  // namespace

std::string fill(std::string_view text, const Values& values, Caller at) {
  std::string filled;
  for (const std::string_view line : body_of(text)) {
    const std::string result = fill_line(line, values, at);
    if (blank(result) && !blank(line)) continue;
    filled += without_trailing_spaces(result);
  }
  filled.pop_back();  // the line break after the last line belongs to whoever goes on
  return filled;
}

void Printer::print(std::string_view text, const Values& values, Caller at) {
  text_ += fill(text, values, at) + "\n";
}

std::string Printer::fill(std::string_view text, const Values& values, Caller at) const {
  Values all = values;
  all.insert(values_.begin(), values_.end());
  return codegen::fill(text, all, at);
}

}  // namespace narrowcast::codegen
