#include <chrono>

#include "codegen/output.hpp"
#include "folder.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

Output two_files() {
  Output output;
  output.add("x/b.hpp", "b\n");
  output.add("x/a.hpp", "a\n");
  return output;
}

using Paths = std::vector<std::string>;

TEST_CASE("only what changed is written") {
  const Folder folder;
  CHECK(two_files().write(folder.path).changed == Paths{"x/a.hpp", "x/b.hpp"});
  CHECK(text_of(folder.path / "x/a.hpp") == "a\n");
  CHECK(two_files().write(folder.path).empty());

  put(folder.path / "x/a.hpp", "edited by hand\n");
  const fs::file_time_type long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(folder.path / "x/b.hpp", long_ago);
  CHECK(two_files().write(folder.path).changed == Paths{"x/a.hpp"});
  CHECK(text_of(folder.path / "x/a.hpp") == "a\n");
  CHECK(fs::last_write_time(folder.path / "x/b.hpp") == long_ago);
}

const std::string kMadeOfX = "// Made from x.toml; edit that and run `narrowcast build`.\n";

TEST_CASE("what is stale goes, but only in the folders of the output") {
  const Folder folder;
  put(folder.path / "x/old.hpp", kMadeOfX);
  put(folder.path / "x/older.md", "<!-- Made from spec/x.toml; edit that. -->\n");
  put(folder.path / "other/a.hpp", kMadeOfX);
  put(folder.path / "CMakeLists.txt", "kept\n");
  CHECK(two_files().write(folder.path).stale == Paths{"x/old.hpp", "x/older.md"});
  CHECK(!fs::exists(folder.path / "x/old.hpp"));
  CHECK(fs::exists(folder.path / "other/a.hpp"));
  CHECK(fs::exists(folder.path / "CMakeLists.txt"));
}

TEST_CASE("what the generator did not make stays, wherever it lies") {
  const Folder folder;
  put(folder.path / "x/notes.txt", "by hand\n");
  put(folder.path / "x/deep/old.hpp", kMadeOfX);
  put(folder.path / "elsewhere/kept.hpp", kMadeOfX);
  fs::create_symlink(folder.path / "elsewhere/kept.hpp", folder.path / "x/link.hpp");
  fs::create_directory_symlink(folder.path / "elsewhere", folder.path / "x/link");
  CHECK(two_files().write(folder.path).stale.empty());
  for (const char* path : {"x/notes.txt", "x/deep/old.hpp", "elsewhere/kept.hpp"})
    CHECK(fs::is_regular_file(folder.path / path));
  for (const char* path : {"x/link.hpp", "x/link"}) CHECK(fs::is_symlink(folder.path / path));

  Output other;
  other.add("y/a.hpp", "a\n");
  put(folder.path / "linked/old.hpp", "// Made from y.toml; edit that.\n");
  fs::create_directory_symlink(folder.path / "linked", folder.path / "y");
  CHECK(other.write(folder.path).stale.empty());
  CHECK(fs::exists(folder.path / "linked/old.hpp"));
}

TEST_CASE("files of formats that are gone go where all formats are asked for") {
  const Folder folder;
  const std::string made = "// Made from spec/gone.toml; edit that and run `make regenerate`.\n";
  put(folder.path / "gone/a.hpp", "// What it is.\n" + made);
  put(folder.path / "mixed/a.hpp", "// Made from spec/mixed.toml; edit that.\n");
  put(folder.path / "mixed/notes.txt", "by hand\n");
  put(folder.path / "copied/a.hpp", made);  // made of another format's spec: somebody's copy
  put(folder.path / "hand/a.hpp", "by hand\n");
  put(folder.path / "CMakeLists.txt", "kept\n");
  CHECK(two_files().compare(folder.path).stale.empty());

  Output output(Scope::kAllFormats);
  output.add("x/a.hpp", "a\n");
  output.add("README.md", "all\n");
  CHECK(output.compare(folder.path).stale == Paths{"gone/a.hpp", "mixed/a.hpp"});
  CHECK(output.write(folder.path).stale == Paths{"gone/a.hpp", "mixed/a.hpp"});
  CHECK(!fs::exists(folder.path / "gone"));
  CHECK(fs::exists(folder.path / "mixed/notes.txt"));
  CHECK(fs::exists(folder.path / "copied/a.hpp"));
  CHECK(fs::exists(folder.path / "hand/a.hpp"));
  CHECK(fs::exists(folder.path / "CMakeLists.txt"));
  CHECK(text_of(folder.path / "README.md") == "all\n");
  CHECK(output.write(folder.path).empty());
}

TEST_CASE("comparing writes nothing") {
  const Folder folder;
  put(folder.path / "x/a.hpp", "edited\n");
  put(folder.path / "x/old.hpp", kMadeOfX);
  const Difference difference = two_files().compare(folder.path);
  CHECK(difference.changed == Paths{"x/a.hpp", "x/b.hpp"});
  CHECK(difference.stale == Paths{"x/old.hpp"});
  CHECK(text_of(folder.path / "x/a.hpp") == "edited\n");
  CHECK(!fs::exists(folder.path / "x/b.hpp"));
}

TEST_CASE("a longer file is replaced in full") {
  const Folder folder;
  put(folder.path / "x/a.hpp", "a\nand more\n");
  two_files().write(folder.path);
  CHECK(text_of(folder.path / "x/a.hpp") == "a\n");
  CHECK(two_files().compare(folder.path).empty());
}

}  // namespace
}  // namespace narrowcast::codegen::test
