// Files, with every step checked.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::codegen {

// What the file system refuses: "cannot write out/a.hpp: No space left on device".
class FileError : public std::runtime_error {
 public:
  FileError(const std::string& what, const std::filesystem::path& path, const std::string& reason)
      : std::runtime_error(what + " " + path.string() + ": " + reason), reason_(reason) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

// What a file holds, but not more than so many bytes; nothing if there is none of that name. What
// is no file is an error and never waited for, as one would for a named pipe.
std::optional<std::string> read_file(const std::filesystem::path& path,
                                     size_t most = static_cast<size_t>(-1));

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

// Texts by their paths in a folder.
using Files = std::map<std::string, std::string>;

// Writes what is not there or has another text, and returns the paths of those. Other processes
// that write to the same folder wait. Throws FileError or std::filesystem::filesystem_error if the
// file system refuses.
std::vector<std::string> write_files(const std::filesystem::path& root, const Files& files);

}  // namespace narrowcast::codegen
