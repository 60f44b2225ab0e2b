// narrowcast_trailer: the last step of a plugin's build, after the linker.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/plugin/trailer.hpp"

namespace {

std::string fault_of_writing(const std::string& path) {
  std::vector<char> file;
  if (std::string fault = narrowcast::read_file(path, file); !fault.empty()) return fault;
  file = narrowcast::with_trailer(file);
  std::ofstream out(path, std::ios::binary);
  out.write(file.data(), static_cast<std::streamsize>(file.size()));
  if (!out.flush()) return "cannot be written";
  // Where a umask of 0 lets linkers make files that all may write: nc.load_plugin refuses those.
  namespace fs = std::filesystem;
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: narrowcast_trailer PLUGIN, a linked file, behind which it writes\n", stderr);
    return 2;
  }
  const std::string fault = fault_of_writing(argv[1]);
  if (fault.empty()) return 0;
  std::fprintf(stderr, "narrowcast_trailer: '%s' %s\n", argv[1], fault.c_str());
  return 1;
}
