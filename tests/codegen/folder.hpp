// Files of a test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace narrowcast::codegen::test {

// A folder that is gone with the test.
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("narrowcast_test_codegen_" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

inline void put(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace narrowcast::codegen::test
