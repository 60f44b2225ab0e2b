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
  std::vector<std::string> stale;    // the generator's, but no file of the output
  bool empty() const { return changed.empty() && stale.empty(); }
};

// What the generator looks after: the folders of the output's formats, where every other file is
// stale; or also those of formats that are gone, where a file that says it was made from the
// format's spec is stale.
enum class Scope { kOwnFolders, kAllFormats };

class Output {
 public:
  explicit Output(Scope scope = Scope::kOwnFolders) : scope_(scope) {}

  // `path` is `format/file`, or a file that stands beside the folders.
  void add(const std::string& path, std::string text);

  // Reads only.
  Difference compare(const std::filesystem::path& root) const;

  // Writes what changed and removes what is stale, and folders that become empty by it. Throws
  // std::filesystem::filesystem_error if the file system refuses.
  Difference write(const std::filesystem::path& root) const;

  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  std::vector<std::string> stale(const std::filesystem::path& root) const;

  Scope scope_;
  std::map<std::string, std::string> files_;
};

}  // namespace narrowcast::codegen
