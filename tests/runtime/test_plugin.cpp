// Files that are plugins, and files that are not: the second are refused with their reason, and
// nothing crashes.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/plugin/trailer.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// The message of the PluginError that loading the file throws.
std::string refusal(const std::string& path) {
  try {
    load_plugin(path);
  } catch (const PluginError& error) {
    return error.what();
  }
  return "loaded";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::filesystem::path temporary(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / "narrowcast_test_plugin";
  std::filesystem::create_directories(folder);
  return folder / name;
}

const std::string kOtherHeaders =
    "was built with other headers than this library, both of plugin version " +
    std::to_string(NC_PLUGIN_VERSION) + ": build it again";

TEST_CASE("all plugins of the build are found by name, once") {
  REQUIRE(!all_plugins().empty());
  for (const nc_plugin* plugin : all_plugins()) {
    CHECK(find_plugin(plugin->format->name) == plugin);
    CHECK(plugin->cpu_variants[0] == std::string("baseline"));
  }
  CHECK(find_plugin("no such format") == nullptr);
  const LoadedPlugin first = loaded_plugins().front();
  CHECK(&load_plugin(first.path) == first.table);
}

TEST_CASE("a file that is missing, a folder, or text") {
  CHECK(contains(refusal("/nowhere/at/all.so"), "does not exist"));
  CHECK(contains(refusal(NARROWCAST_TEST_PLUGINS), "is a directory"));
  const auto text = temporary("text.so");
  std::ofstream(text) << "this is no shared library, whatever its name says; it is long enough for "
                         "a header, though";
  CHECK(contains(refusal(text.string()), "does not begin as one"));
  std::ofstream(temporary("empty.so")).flush();
  CHECK(contains(refusal(temporary("empty.so").string()), "only 0 bytes"));
}

TEST_CASE("a plugin that was cut short, anywhere") {
  std::ifstream file(loaded_plugins().front().path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (int part = 0; part < 32; ++part) {
    CAPTURE(part);
    const auto cut = temporary("cut.so");
    std::ofstream(cut, std::ios::binary) << whole.substr(0, whole.size() * part / 32);
    const std::string reason = refusal(cut.string());
    CHECK((contains(reason, "is cut short") || contains(reason, "only")));
  }
}

// A library that ends the process when it is loaded, with such a trailer.
std::string refusal_of_foreign(uint64_t version, uint64_t headers) {
  std::vector<char> file;
  REQUIRE(read_file(NARROWCAST_TEST_FOREIGN, file).empty());
  file = with_trailer(file, version, headers);
  const auto path = temporary("foreign.so");
  std::ofstream(path, std::ios::binary)
      .write(file.data(), static_cast<std::streamsize>(file.size()));
  return refusal(path.string());
}

TEST_CASE("what is no plugin, or one of another build, is refused before anything of it runs") {
  CHECK(contains(refusal(NARROWCAST_TEST_FOREIGN), "is not a narrowcast plugin"));
  CHECK(contains(refusal_of_foreign(0, headers_hash()), "was built for plugin version 0"));
  CHECK(contains(refusal_of_foreign(NC_PLUGIN_VERSION, 1), kOtherHeaders));
}

TEST_CASE("a plugin that is not what its end says, a broken one, and a second of the same name") {
  CHECK(contains(refusal(NARROWCAST_TEST_SILENT), "does not export narrowcast_plugin()"));
  CHECK(contains(refusal(NARROWCAST_TEST_NOTHING), "narrowcast_plugin() returns NULL"));
  CHECK(contains(refusal(NARROWCAST_TEST_OLD_TABLE), "was built for plugin version 0"));
  CHECK(contains(refusal(NARROWCAST_TEST_CHANGED_TABLE), kOtherHeaders));
  CHECK(contains(refusal(NARROWCAST_TEST_EMPTY), "format of its table is NULL"));
  CHECK(contains(refusal(NARROWCAST_TEST_ZERO_BLOCKS),
                 "is broken: rowwise.scale_per_rows of its table is 0, not from 1 to 1048576"));
  CHECK(find_plugin("zero_blocks") == nullptr);
  const auto copy = temporary("copy.so");
  std::filesystem::copy_file(loaded_plugins().front().path, copy,
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(contains(refusal(copy.string()), "has already brought"));
}

}  // namespace
}  // namespace narrowcast::test
