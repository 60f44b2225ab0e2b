#include "runtime/plugin/elf.hpp"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

namespace narrowcast {
namespace {

std::string cut_short(uint64_t needed, uint64_t size) {
  return "is cut short: its headers promise " + std::to_string(needed) + " bytes, and it has " +
         std::to_string(size);
}

}  // namespace

std::string shared_library_fault(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "cannot be read: is the path right, and may this process read it?";
  const std::streamoff end = file.tellg();
  if (end < 0) return "is not a regular file";
  const uint64_t size = static_cast<uint64_t>(end);

  Elf64_Ehdr header;
  if (size < sizeof(header))
    return "is not a shared library: it has only " + std::to_string(size) + " bytes";
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return "cannot be read";
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return "is not a shared library: it does not begin as one";
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN)
    return "is not a 64-bit shared library";
  if (header.e_phentsize != sizeof(Elf64_Phdr))
    return "is not a shared library that this system can read";

  const uint64_t sections_end = header.e_shoff + uint64_t{header.e_shentsize} * header.e_shnum;
  const uint64_t segments_end = header.e_phoff + uint64_t{header.e_phentsize} * header.e_phnum;
  if (sections_end > size) return cut_short(sections_end, size);
  if (segments_end > size) return cut_short(segments_end, size);

  std::vector<Elf64_Phdr> segments(header.e_phnum);
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  if (!file.read(reinterpret_cast<char*>(segments.data()),
                 static_cast<std::streamsize>(segments.size() * sizeof(Elf64_Phdr)))) {
    return "cannot be read";
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > size) {
      return cut_short(segment.p_offset + segment.p_filesz, size);
    }
  }
  return "";
}

}  // namespace narrowcast
