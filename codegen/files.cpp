#include "codegen/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

// Errors are those of errno, which C's functions set and C++'s streams need not.
struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void fail(const std::string& what, const fs::path& path, int reason) {
  throw FileError(what, path, std::strerror(reason));
}

// Errno of the first step that fails, or 0.
int written(const fs::path& path, std::string_view text) {
  File file(std::fopen(path.c_str(), "wbx"));
  if (!file) return errno;
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) return errno;
  return std::fclose(file.release()) == 0 ? 0 : errno;
}

}  // namespace

std::optional<std::string> read_file(const fs::path& path, size_t most) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return std::nullopt;
  if (!fs::status_known(status)) throw FileError("cannot read", path, error.message());
  if (fs::is_directory(status)) throw FileError("cannot read", path, "it is a folder");
  if (!fs::is_regular_file(status)) throw FileError("cannot read", path, "it is not a file");
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail("cannot read", path, errno);
  std::string text;
  char part[4096];
  while (text.size() < most) {
    const size_t wanted = std::min(sizeof(part), most - text.size());
    const size_t length = std::fread(part, 1, wanted, file.get());
    if (length == 0) break;
    text.append(part, length);
  }
  if (std::ferror(file.get()) != 0) fail("cannot read", path, errno);
  return text;
}

void replace_file(const fs::path& path, std::string_view text) {
  const fs::path draft = path.string() + ".new";
  fs::remove(draft);  // of a run that was ended
  if (const int reason = written(draft, text); reason != 0) {
    ::unlink(draft.c_str());
    fail("cannot write", draft, reason);
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(draft.c_str());
    fail("cannot replace", path, reason);
  }
}

FolderLock::FolderLock(const fs::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_ < 0) fail("cannot open the folder", folder, errno);
  while (::flock(folder_, LOCK_EX) != 0 && errno == EINTR) continue;
}

FolderLock::~FolderLock() { ::close(folder_); }

std::vector<std::string> write_files(const fs::path& root, const Files& files) {
  fs::create_directories(root);
  const FolderLock lock(root);
  std::vector<std::string> written;
  for (const auto& [path, text] : files) {
    if (read_file(root / path) == text) continue;
    fs::create_directories((root / path).parent_path());
    replace_file(root / path, text);
    written.push_back(path);
  }
  return written;
}

}  // namespace narrowcast::codegen
