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
  std::vector<std::string> stale;  // says that the generator made it, but is no file of the output
  bool empty() const { return changed.empty() && stale.empty(); }
};

// Where the generator looks for what is stale: in the folders of the output's formats; or also in
// those of formats of the source tree that are gone. Stale is a file there whose head says that it
// was made from the spec of that format. Whatever else lies there is somebody's: other files,
// folders, symbolic links and what they lead to.
enum class Scope { kOwnFolders, kAllFormats };

class Output {
 public:
  explicit Output(Scope scope = Scope::kOwnFolders) : scope_(scope) {}

  // `path` is `format/file`, or a file that stands beside the folders.
  void add(const std::string& path, std::string text);

  // Reads only.
  Difference compare(const std::filesystem::path& root) const;

  // Writes what changed and removes what is stale, and folders that become empty by it. Other
  // processes that write to the same root wait. Throws FileError or
  // std::filesystem::filesystem_error if the file system refuses.
  Difference write(const std::filesystem::path& root) const;

  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  std::vector<std::string> stale(const std::filesystem::path& root) const;

  Scope scope_;
  std::map<std::string, std::string> files_;
};

}  // namespace narrowcast::codegen
