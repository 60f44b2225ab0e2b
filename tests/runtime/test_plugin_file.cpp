// The bytes of a plugin's file, changed in every way: whatever they have become is refused, and
// found out within their bounds.
#include <doctest/doctest.h>
#include <elf.h>

#include <functional>
#include <set>

#include "runtime/plugin/build_text.hpp"
#include "runtime/plugin/elf.hpp"
#include "runtime/plugin/file_checks.hpp"
#include "runtime/plugin/seal.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

// Small, whole, and wrong only in its table.
const std::vector<char>& plugin_file() {
  static const std::vector<char> kFile = [] {
    std::vector<char> file;
    REQUIRE(read_file(NARROWCAST_TEST_EMPTY, file).empty());
    REQUIRE(file_fault(file).empty());
    return file;
  }();
  return kFile;
}

size_t headers_bytes() {
  const auto header = struct_at<Elf64_Ehdr>(plugin_file(), 0);
  return header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr);
}

TEST_CASE("a flip of any bit of the headers and of the note, and of many others") {
  std::vector<char> file = plugin_file();
  std::set<size_t> bytes;
  for (size_t i = 0; i < headers_bytes(); ++i) bytes.insert(i);
  for (size_t i = 0; i < sizeof(Note); ++i) bytes.insert(find_note(file).offset + i);
  Random random(1);
  for (int i = 0; i < 500; ++i)
    bytes.insert(static_cast<size_t>(random.bits() % plugin_file().size()));
  for (const size_t byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      file[byte] = static_cast<char>(file[byte] ^ 1 << bit);
      if (file_fault(file).empty()) FAIL_CHECK("bit " << bit << " of byte " << byte);
      file[byte] = static_cast<char>(file[byte] ^ 1 << bit);
    }
  }
  CHECK(file_fault(file).empty());
}

TEST_CASE("pairs of flips, which a weak checksum takes for none") {
  std::vector<char> file = plugin_file();
  for (size_t byte = 4096; byte + 16 < file.size(); byte += 61) {
    file[byte] = static_cast<char>(file[byte] ^ 0x80);
    file[byte + 8] = static_cast<char>(file[byte + 8] ^ 0x80);
    if (file_fault(file).empty()) FAIL_CHECK("bytes " << byte << " and " << byte + 8);
    file[byte] = static_cast<char>(file[byte] ^ 0x80);
    file[byte + 8] = static_cast<char>(file[byte + 8] ^ 0x80);
  }
}

TEST_CASE("a file of any other length") {
  const std::vector<char>& whole = plugin_file();
  for (size_t size = 0; size < whole.size(); size += size < 4096 ? 1 : 97) {
    // In memory of its own, so that a sanitizer sees what is read behind the end.
    const std::vector<char> part(whole.data(), whole.data() + size);
    const std::string fault = file_fault(part);
    const bool told = fault.find("is cut short") != fault.npos || fault.find("only") != fault.npos;
    if (!told) FAIL_CHECK(size << " bytes: " << fault);
  }
  std::vector<char> longer = whole;
  longer.push_back(0);
  CHECK(file_fault(longer).find("is damaged") != std::string::npos);
}

// What is found in a file whose 64-bit word at `at` is another one. The seal is made anew where
// there is a note, so that it hides nothing.
std::string fault_with(size_t at, uint64_t word) {
  std::vector<char> file = plugin_file();
  std::memcpy(file.data() + at, &word, sizeof(word));
  const auto [fault, note] = find_note(file);
  if (!fault.empty()) return fault;
  REQUIRE(lies_within(note, sizeof(NoteHead), file.size()));
  seal(file, note);
  return file_fault(file);
}

TEST_CASE("hostile numbers in every place of the headers and of the note stay within the file") {
  const uint64_t size = plugin_file().size();
  const uint64_t words[] = {0, 1, 4, size - 1, size, ~uint64_t{0}, ~uint64_t{7}, uint64_t{1} << 63};
  const size_t note = find_note(plugin_file()).offset;
  for (const uint64_t word : words) {
    for (size_t at = 0; at < headers_bytes(); at += 4) fault_with(at, word);
    for (size_t at = note; at < note + sizeof(Note); at += 4) fault_with(at, word);
  }
}

TEST_CASE("offset and size of a segment whose sum overflows") {
  const auto header = struct_at<Elf64_Ehdr>(plugin_file(), 0);
  for (size_t i = 0; i < header.e_phnum; ++i) {
    const size_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
    const auto segment = struct_at<Elf64_Phdr>(plugin_file(), at);
    if (segment.p_type != PT_NOTE) continue;
    const uint64_t back = ~uint64_t{0} - segment.p_filesz + 1;  // + p_filesz is 0
    const std::string fault = fault_with(at + offsetof(Elf64_Phdr, p_offset), back);
    CHECK(fault == "is cut short: its headers speak of " + std::to_string(segment.p_filesz) +
                       " bytes at " + std::to_string(back) + ", and it has " +
                       std::to_string(plugin_file().size()));
    return;
  }
  FAIL("there is no note");
}

TEST_CASE("offset and size of the program headers whose sum overflows") {
  CHECK(fault_with(offsetof(Elf64_Ehdr, e_phoff), ~uint64_t{55}).find("is cut short") == 0);
}

TEST_CASE("a plugin for other processors, and one that nobody sealed") {
  std::vector<char> file = plugin_file();
  const Elf64_Half machine = EM_SPARCV9;
  std::memcpy(file.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof(machine));
  CHECK(file_fault(file).find("is a library for other processors (ELF machine 43)") == 0);

  file = plugin_file();
  const uint64_t none = 0;
  std::memcpy(file.data() + find_note(file).offset + offsetof(NoteHead, file_bytes), &none, 8);
  CHECK(file_fault(file).find("narrowcast_seal has not run") != std::string::npos);
}

}  // namespace
}  // namespace narrowcast::test
