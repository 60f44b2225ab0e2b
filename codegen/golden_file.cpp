#include "codegen/golden_file.hpp"

#include "codegen/files.hpp"
#include "codegen/golden.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

bool is_kept(const Plan& plan, const fs::path& path, const std::string& frozen,
             std::ostream& errors) {
  const std::string text = golden_text(plan);
  if (frozen == text) return true;
  errors << path.string() << ": error: ";
  if (text.starts_with(frozen)) {
    errors << "the golden bytes of " << plan.name << " are cut short, after " << frozen.size()
           << " of " << text.size() << " characters\n  take the file back from version control\n";
  } else {
    errors << "the spec no longer makes the golden bytes of " << plan.name
           << "\n  bytes are frozen with a format's name: take the change back, or give it a new "
              "name\n";
  }
  return false;
}

}  // namespace

bool keep_golden(const Plan& plan, const fs::path& folder, std::ostream& out,
                 std::ostream& errors) {
  const fs::path path = folder / (plan.name + ".txt");
  if (const auto frozen = read_file(path)) return is_kept(plan, path, *frozen, errors);
  fs::create_directories(folder);
  const FolderLock lock(folder);
  replace_file(path, golden_text(plan));
  out << "froze " << path.string() << "\n";
  return true;
}

}  // namespace narrowcast::codegen
