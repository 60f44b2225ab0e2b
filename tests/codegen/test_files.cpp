// What happens to files where the file system refuses.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <sstream>

#include "codegen/files.hpp"
#include "codegen/golden.hpp"
#include "codegen/golden_file.hpp"
#include "folder.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

// While it lives, no file grows beyond so many bytes: as on a disk that is full.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~SmallDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

// What the exception says that `work` throws.
template <class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("golden bytes that the disk has no room for are an error, and leave no file") {
  const Folder folder;
  const Plan plan = plan_of("nvfp4");
  const fs::path golden = folder.path / "golden";
  std::ostringstream said, errors;
  {
    const SmallDisk disk(1000);
    const std::string error = error_of([&] { keep_golden(plan, golden, said, errors); });
    CHECK(holds(error, "cannot write " + (golden / "nvfp4.txt").string()));
    CHECK(holds(error, "File too large"));
  }
  CHECK(said.str().empty());
  CHECK(fs::is_empty(golden));
  CHECK(keep_golden(plan, golden, said, errors));
  CHECK(said.str() == "froze " + (golden / "nvfp4.txt").string() + "\n");
  CHECK(text_of(golden / "nvfp4.txt") == golden_text(plan));
  CHECK(errors.str().empty());
}

TEST_CASE("golden bytes that were cut short are told from others") {
  const Folder folder;
  const Plan plan = plan_of("nvfp4");
  const auto errors_with = [&](const std::string& frozen) {
    put(folder.path / "nvfp4.txt", frozen);
    std::ostringstream said, errors;
    CHECK(!keep_golden(plan, folder.path, said, errors));
    return errors.str();
  };
  CHECK(holds(errors_with(""), "are cut short, after 0 of"));
  CHECK(holds(errors_with(golden_text(plan).substr(0, 100)), "are cut short, after 100 of"));
  CHECK(holds(errors_with("other"), "no longer makes the golden bytes of nvfp4"));
}

TEST_CASE("only what changed is written") {
  const Folder folder;
  const Files files = {{"x/a.hpp", "a\n"}, {"x/b.hpp", "b\n"}};
  using Paths = std::vector<std::string>;
  CHECK(write_files(folder.path, files) == Paths{"x/a.hpp", "x/b.hpp"});
  CHECK(text_of(folder.path / "x/a.hpp") == "a\n");
  CHECK(write_files(folder.path, files).empty());

  put(folder.path / "x/a.hpp", "a\nand more, by hand\n");
  put(folder.path / "x/notes.txt", "by hand\n");
  const fs::file_time_type long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(folder.path / "x/b.hpp", long_ago);
  CHECK(write_files(folder.path, files) == Paths{"x/a.hpp"});
  CHECK(text_of(folder.path / "x/a.hpp") == "a\n");
  CHECK(fs::last_write_time(folder.path / "x/b.hpp") == long_ago);
  CHECK(text_of(folder.path / "x/notes.txt") == "by hand\n");
}

TEST_CASE("a disk without room leaves the old files") {
  const Folder folder;
  put(folder.path / "x/a.hpp", "old\n");
  const Files files = {{"x/a.hpp", std::string(5000, 'n')}};
  {
    const SmallDisk disk(1000);
    const std::string error = error_of([&] { write_files(folder.path, files); });
    CHECK(holds(error, "x/a.hpp.new: File too large"));
  }
  CHECK(text_of(folder.path / "x/a.hpp") == "old\n");
  CHECK(!fs::exists(folder.path / "x/a.hpp.new"));
}

TEST_CASE("a folder that stands where a file goes is an error with its name") {
  const Folder folder;
  fs::create_directories(folder.path / "x/a.hpp/b");
  const std::string error = error_of([&] { write_files(folder.path, {{"x/a.hpp", "a\n"}}); });
  CHECK(holds(error, (folder.path / "x/a.hpp").string()));
  CHECK(fs::exists(folder.path / "x/a.hpp/b"));
}

TEST_CASE("a draft is not written through a link that somebody left") {
  const Folder folder;
  put(folder.path / "precious", "precious\n");
  fs::create_symlink(folder.path / "precious", folder.path / "a.hpp.new");
  replace_file(folder.path / "a.hpp", "a\n");
  CHECK(text_of(folder.path / "precious") == "precious\n");
  CHECK(text_of(folder.path / "a.hpp") == "a\n");
  CHECK(!fs::is_symlink(folder.path / "a.hpp"));
}

// The exit status of a process that writes an output of one file, twenty times.
int write_often(const fs::path& root, const std::string& text) {
  try {
    for (int i = 0; i < 20; ++i) write_files(root, {{"x/a.hpp", text + std::to_string(i)}});
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

TEST_CASE("processes that write to one folder at once wait for each other") {
  const Folder folder;
  std::vector<pid_t> children;
  for (const char* text : {"one", "two", "three", "four"}) {
    children.push_back(::fork());
    if (children.back() == 0) ::_exit(write_often(folder.path, text));
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(text_of(folder.path / "x/a.hpp").ends_with("19"));
}

}  // namespace
}  // namespace narrowcast::codegen::test
