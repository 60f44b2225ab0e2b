// Text with holes. A template is a raw string that looks like its output:
//
//   printer.print(R"text(
//     struct $name$ {
//       static constexpr int kTileRows = $tile_rows$;
//     };
//   )text",
//                 {{"tile_rows", "32"}});
//
// The margin common to all lines is removed, and so are the line breaks that touch the quotes. A
// value of several lines keeps the indentation of its hole; a line that holds nothing but an empty
// value is left out. There are neither loops nor conditions: what varies is put together in C++ and
// filled in. `$$` is a dollar sign.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace narrowcast::codegen {

// Where a template stands: std::source_location in small, because clang-tidy 14 cannot read GCC's.
struct Caller {
  const char* file;
  int line;
  static constexpr Caller here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

using Values = std::map<std::string, std::string, std::less<>>;

// The template with its holes filled. A hole without a value, or an opening `$` without its end, is
// a mistake in the generator, not in a spec: std::logic_error names the caller's file and line.
std::string fill(std::string_view text, const Values& values, Caller at = Caller::here());

class Printer {
 public:
  // Values that every template may use.
  explicit Printer(Values values) : values_(std::move(values)) {}

  void print(std::string_view text, const Values& values = {}, Caller at = Caller::here());
  std::string fill(std::string_view text, const Values& values = {},
                   Caller at = Caller::here()) const;
  const std::string& text() const { return text_; }

 private:
  Values values_;
  std::string text_;
};

}  // namespace narrowcast::codegen
