// narrowcast_seal: the last step of a plugin's build, after the linker.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/plugin/elf.hpp"
#include "runtime/plugin/seal.hpp"

namespace {

std::string sealing_fault(const std::string& path) {
  std::vector<char> file;
  if (std::string fault = narrowcast::read_file(path, file); !fault.empty()) return fault;
  const auto [fault, note] = narrowcast::find_note(file);
  if (!fault.empty()) return fault;
  narrowcast::seal(file, note);
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.write(file.data(), static_cast<std::streamsize>(file.size()));
  if (!out.flush()) return "cannot be written";
  // Where a umask of 0 lets linkers make files that all may write: nc.load refuses those.
  namespace fs = std::filesystem;
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: narrowcast_seal PLUGIN, a file that was linked, which it changes\n", stderr);
    return 2;
  }
  const std::string fault = sealing_fault(argv[1]);
  if (fault.empty()) return 0;
  std::fprintf(stderr, "narrowcast_seal: '%s' %s\n", argv[1], fault.c_str());
  return 1;
}
