// The bytes of a plugin's file, changed in every way: whatever they have become is refused, and
// found out within their bounds.
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "runtime/plugin/trailer.hpp"
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

size_t trailer_begin() { return plugin_file().size() - sizeof(Trailer); }

TEST_CASE("a flip of any bit of the beginning and of the trailer, and of many others") {
  std::vector<char> file = plugin_file();
  std::set<size_t> bytes;
  for (size_t i = 0; i < 1024; ++i) bytes.insert(i);
  for (size_t i = trailer_begin(); i < file.size(); ++i) bytes.insert(i);
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
  CHECK(file_fault(longer).find("is cut short, or is not a narrowcast plugin") == 0);
  longer = whole;
  longer.insert(longer.begin() + 4096, 0);
  CHECK(file_fault(longer).find("is damaged (it was built with ") == 0);
}

TEST_CASE("hostile numbers in every place of the trailer stay within the file") {
  const uint64_t size = plugin_file().size();
  const uint64_t words[] = {0, 1, 4, size - 1, size, ~uint64_t{0}, ~uint64_t{7}, uint64_t{1} << 63};
  for (const uint64_t word : words) {
    for (size_t at = trailer_begin(); at + sizeof(word) <= size; at += 4) {
      std::vector<char> file = plugin_file();
      std::memcpy(file.data() + at, &word, sizeof(word));
      if (file != plugin_file()) CHECK(!file_fault(file).empty());
    }
  }
}

TEST_CASE("a trailer is written once, and says for what the file was built") {
  const std::vector<char>& whole = plugin_file();
  CHECK(with_trailer(whole) == whole);
  const std::vector<char> library(whole.data(), whole.data() + trailer_begin());
  CHECK(with_trailer(library) == whole);
  CHECK(file_fault(library).find("is cut short, or is not a narrowcast plugin") == 0);
  CHECK(file_fault(with_trailer(library, 3))
            .find("was built for plugin version 3, and this library reads version ") == 0);
  CHECK(file_fault(with_trailer(library, NC_PLUGIN_VERSION, 1))
            .find("was built with other headers") == 0);
}

}  // namespace
}  // namespace narrowcast::test
