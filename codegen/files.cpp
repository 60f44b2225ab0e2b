#include "codegen/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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
  throw std::system_error(reason, std::generic_category(), what + " " + path.string());
}

// Errno of the first step that fails, or 0.
int written(const fs::path& path, std::string_view text) {
  File file(std::fopen(path.c_str(), "wbx"));
  if (!file) return errno;
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) return errno;
  return std::fclose(file.release()) == 0 ? 0 : errno;
}

}  // namespace

std::optional<std::string> read_file(const fs::path& path) {
  std::error_code unknown;
  const fs::file_status status = fs::status(path, unknown);
  if (!fs::exists(status)) return std::nullopt;
  if (!fs::is_regular_file(status)) fail("cannot read, because it is not a file,", path, EINVAL);
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail("cannot read", path, errno);
  std::string text;
  char part[4096];
  while (const size_t length = std::fread(part, 1, sizeof(part), file.get()))
    text.append(part, length);
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

}  // namespace narrowcast::codegen
