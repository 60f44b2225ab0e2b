#include "codegen/output.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "codegen/files.hpp"
#include "codegen/origin.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

// The names in a folder, in order; none if there is no such folder.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> names;
  if (!fs::is_directory(folder)) return names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Whether the head of a file says that the generator made it of this format's spec: one of the
// source tree, or, in a folder of this run's, one that lies elsewhere.
bool is_made_of(const std::string& format, const fs::path& path, bool outside_too) {
  constexpr size_t kHead = 1000;
  if (fs::is_symlink(path) || !fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string head(kHead, '\0');
  file.read(head.data(), kHead);
  return head.find(made_from_tree(format)) != std::string::npos ||
         (outside_too && head.find(made_outside(format)) != std::string::npos);
}

}  // namespace

void Output::add(const std::string& path, std::string text) { files_[path] = std::move(text); }

std::vector<std::string> Output::stale(const fs::path& root) const {
  std::set<fs::path> folders;
  for (const auto& [path, text] : files_) folders.insert(fs::path(path).parent_path());
  std::vector<std::string> stale;
  for (const fs::path& folder : entries(root)) {
    const bool ours = folders.contains(folder);
    if ((!ours && scope_ == Scope::kOwnFolders) || fs::is_symlink(root / folder)) continue;
    for (const fs::path& file : entries(root / folder)) {
      const std::string path = (folder / file).string();
      if (!files_.contains(path) && is_made_of(folder.string(), root / path, ours))
        stale.push_back(path);
    }
  }
  return stale;
}

Difference Output::compare(const fs::path& root) const {
  Difference difference;
  for (const auto& [path, text] : files_) {
    if (read_file(root / path) != text) difference.changed.push_back(path);
  }
  difference.stale = stale(root);
  return difference;
}

Difference Output::write(const fs::path& root) const {
  fs::create_directories(root);
  const FolderLock lock(root);
  Difference difference = compare(root);
  for (const std::string& path : difference.changed) {
    fs::create_directories((root / path).parent_path());
    replace_file(root / path, files_.at(path));
  }
  for (const std::string& path : difference.stale) {
    fs::remove(root / path);
    ::rmdir((root / path).parent_path().c_str());  // which refuses while anything is in it
  }
  return difference;
}

}  // namespace narrowcast::codegen
