#include "codegen/output.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& path, const std::string& text) {
  std::ifstream file(path, std::ios::binary);
  return file.is_open() && std::string(std::istreambuf_iterator<char>(file), {}) == text;
}

// A reader of the folder sees the old file or the new one, never a part.
void replace(const fs::path& path, const std::string& text) {
  const fs::path draft = path.string() + ".new";
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw fs::filesystem_error("cannot write", draft, std::make_error_code(std::errc::io_error));
  }
  fs::rename(draft, path);
}

}  // namespace

void Output::add(const std::string& path, std::string text) { files_[path] = std::move(text); }

Difference Output::compare(const fs::path& root) const {
  Difference difference;
  std::set<fs::path> folders;
  for (const auto& [path, text] : files_) {
    if (!holds(root / path, text)) difference.changed.push_back(path);
    folders.insert(fs::path(path).parent_path());
  }
  for (const fs::path& folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(root / folder)) {
      const std::string path = (folder / entry.path().filename()).string();
      if (!files_.contains(path)) difference.stale.push_back(path);
    }
  }
  std::sort(difference.stale.begin(), difference.stale.end());
  return difference;
}

Difference Output::write(const fs::path& root) const {
  Difference difference = compare(root);
  for (const std::string& path : difference.changed) {
    fs::create_directories((root / path).parent_path());
    replace(root / path, files_.at(path));
  }
  for (const std::string& path : difference.stale) fs::remove_all(root / path);
  return difference;
}

}  // namespace narrowcast::codegen
