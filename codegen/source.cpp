#include "codegen/source.hpp"

#include "codegen/files.hpp"
#include "codegen/limits.hpp"

namespace narrowcast::codegen {

std::string Source::file() const { return path.substr(path.find_last_of('/') + 1); }

std::string Source::stem() const {
  const std::string name = file();
  return name.substr(0, name.find_last_of('.'));
}

std::string_view Source::line(int number) const {
  std::string_view rest = text;
  for (int i = 1; i < number; ++i) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
  std::string_view line = rest.substr(0, rest.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool load(const std::string& path, Source& source, std::string& reason) {
  try {
    std::optional<std::string> text = read_file(path, kMostBytes + 1);
    reason = text ? "" : "there is no such file";
    source = {path, std::move(text).value_or("")};
  } catch (const FileError& error) {
    reason = error.reason();
  }
  return reason.empty();
}

}  // namespace narrowcast::codegen
