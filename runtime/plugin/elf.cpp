#include "runtime/plugin/elf.hpp"

#include <elf.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "runtime/plugin/note.hpp"

namespace narrowcast {
namespace {

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#else
constexpr int kMachine = EM_NONE;  // the loader knows its own
#endif
constexpr int kEncoding = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

std::string header_fault(std::span<const char> file) {
  if (file.size() < sizeof(Elf64_Ehdr))
    return "is not a shared library: it has only " + std::to_string(file.size()) + " bytes";
  const auto header = struct_at<Elf64_Ehdr>(file, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return "is not a shared library: it does not begin as one";
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN)
    return "is not a 64-bit shared library";
  if (header.e_ident[EI_DATA] != kEncoding ||
      (kMachine != EM_NONE && header.e_machine != kMachine)) {
    return "is a library for other processors (ELF machine " + std::to_string(header.e_machine) +
           ") than this one (" + std::to_string(kMachine) + "): build it here";
  }
  if (header.e_ident[EI_VERSION] != EV_CURRENT || header.e_phentsize != sizeof(Elf64_Phdr))
    return "is not a shared library that this system can read";
  return "";
}

std::string cut_short(uint64_t offset, uint64_t bytes, uint64_t size) {
  return "is cut short: its headers speak of " + std::to_string(bytes) + " bytes at " +
         std::to_string(offset) + ", and it has " + std::to_string(size);
}

bool is_head(const NoteHead& head) {
  return head.name_bytes == sizeof("narrowcast") && head.type == kNoteType &&
         std::memcmp(head.name, kNoteName, sizeof(kNoteName)) == 0;
}

}  // namespace

std::string read_file(const std::string& path, std::vector<char>& bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "is not a regular file";
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "cannot be read: is the path right, and may this process read it?";
  bytes.resize(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
    return "cannot be read to its end";
  return "";
}

NoteSearch find_note(std::span<const char> file) {
  if (const std::string fault = header_fault(file); !fault.empty()) return {fault};
  const auto header = struct_at<Elf64_Ehdr>(file, 0);
  const uint64_t headers_bytes = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  if (!lies_within(header.e_phoff, headers_bytes, file.size()))
    return {cut_short(header.e_phoff, headers_bytes, file.size())};

  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = struct_at<Elf64_Phdr>(file, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_NOTE) continue;
    if (!lies_within(segment.p_offset, segment.p_filesz, file.size()))
      return {cut_short(segment.p_offset, segment.p_filesz, file.size())};
    // Looked for at every place where a note can begin: nothing depends on the sizes that other
    // notes give for themselves.
    for (uint64_t at = 0; lies_within(at, sizeof(NoteHead), segment.p_filesz); at += 4) {
      if (is_head(struct_at<NoteHead>(file, segment.p_offset + at)))
        return {"", segment.p_offset + at};
    }
  }
  return {"is not a narrowcast plugin: it has no note " NC_NOTE_SECTION
          ". If it was built before plugins had one, build it again with `narrowcast build`"};
}

}  // namespace narrowcast
