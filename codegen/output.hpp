// The files that a run makes: put together in memory, then written where they differ from what is
// there, or only compared.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace narrowcast::codegen {

// What stands between a folder and the output. Paths are relative to the folder, in order.
struct Difference {
  std::vector<std::string> changed;  // missing, or with another text
  std::vector<std::string> stale;    // in a format's own folder, but no file of the output
  bool empty() const { return changed.empty() && stale.empty(); }
};

class Output {
 public:
  // `path` is `format/file`; the folder of a format belongs to the generator alone.
  void add(const std::string& path, std::string text);

  // Reads only.
  Difference compare(const std::filesystem::path& root) const;

  // Writes what changed and removes what is stale. Throws std::filesystem::filesystem_error if the
  // file system refuses.
  Difference write(const std::filesystem::path& root) const;

  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  std::map<std::string, std::string> files_;
};

}  // namespace narrowcast::codegen
