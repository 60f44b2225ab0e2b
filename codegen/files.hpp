// Files, with every step checked: what fails throws std::system_error, which names the file and the
// reason.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace narrowcast::codegen {

// What a file holds; nothing if there is none of that name.
std::optional<std::string> read_file(const std::filesystem::path& path);

// Written beside the file, to <path>.new, and renamed: a reader sees the old text or the new one,
// never a part, and a disk that is full leaves the old one. A symbolic link is replaced, not
// followed.
void replace_file(const std::filesystem::path& path, std::string_view text);

// While it lives, no other process has one of the same folder, which must be there: others wait.
// Without effect on a file system that knows no locks.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

}  // namespace narrowcast::codegen
