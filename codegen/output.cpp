#include "codegen/output.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "codegen/origin.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& path, const std::string& text) {
  std::ifstream file(path, std::ios::binary);
  return file.is_open() && std::string(std::istreambuf_iterator<char>(file), {}) == text;
}

// The names in a folder, in order; none if there is no such folder.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> names;
  if (!fs::is_directory(folder)) return names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Whether the head of a file says that the generator made it of this format's spec.
bool is_made_from_tree(const fs::path& path, const std::string& format) {
  constexpr size_t kHead = 1000;
  if (fs::is_symlink(path) || !fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string head(kHead, '\0');
  file.read(head.data(), kHead);
  return head.find(made_from_tree(format)) != std::string::npos;
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

std::vector<std::string> Output::stale(const fs::path& root) const {
  std::set<fs::path> folders;
  for (const auto& [path, text] : files_) folders.insert(fs::path(path).parent_path());
  std::vector<std::string> stale;
  for (const fs::path& folder : entries(root)) {
    const bool ours = folders.contains(folder);
    if (!ours && (scope_ == Scope::kOwnFolders || fs::is_symlink(root / folder))) continue;
    for (const fs::path& file : entries(root / folder)) {
      const std::string path = (folder / file).string();
      if (ours ? !files_.contains(path) : is_made_from_tree(root / path, folder.string()))
        stale.push_back(path);
    }
  }
  return stale;
}

Difference Output::compare(const fs::path& root) const {
  Difference difference;
  for (const auto& [path, text] : files_) {
    if (!holds(root / path, text)) difference.changed.push_back(path);
  }
  difference.stale = stale(root);
  return difference;
}

Difference Output::write(const fs::path& root) const {
  Difference difference = compare(root);
  for (const std::string& path : difference.changed) {
    fs::create_directories((root / path).parent_path());
    replace(root / path, files_.at(path));
  }
  for (const std::string& path : difference.stale) {
    fs::remove_all(root / path);
    const fs::path folder = (root / path).parent_path();
    if (fs::is_empty(folder)) fs::remove(folder);
  }
  return difference;
}

}  // namespace narrowcast::codegen
