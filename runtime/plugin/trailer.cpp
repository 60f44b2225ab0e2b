#include "runtime/plugin/trailer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace narrowcast {
namespace {

constexpr char kMark[sizeof(Trailer::mark)] = "narrowcast end\n";

// Eight bytes at a time. Every step is a bijection of the value, so that whatever changes within
// eight bytes is certain to change the result.
uint64_t checksum_of(std::span<const char> bytes) {
  uint64_t value = bytes.size();
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    value = (value ^ word) * 0x9e3779b97f4a7c15u;
    value ^= value >> 32;
  }
  return value;
}

// The checksum is the file's last word.
uint64_t checksum_of_file(std::span<const char> file) {
  return checksum_of(file.first(file.size() - sizeof(Trailer::checksum)));
}

// Of a file without a trailer, one without a mark.
Trailer trailer_of(std::span<const char> file) {
  Trailer trailer{};
  if (file.size() >= sizeof(trailer))
    std::memcpy(&trailer, file.last(sizeof(trailer)).data(), sizeof(trailer));
  return trailer;
}

bool is_marked(const Trailer& trailer) {
  return std::memcmp(trailer.mark, kMark, sizeof(kMark)) == 0;
}

}  // namespace

std::vector<char> with_trailer(std::span<const char> library, uint64_t version, uint64_t headers) {
  if (is_marked(trailer_of(library))) library = library.first(library.size() - sizeof(Trailer));
  Trailer trailer{{}, version, headers, library.size(), 0};
  std::memcpy(trailer.mark, kMark, sizeof(kMark));
  std::vector<char> file(library.begin(), library.end());
  file.resize(library.size() + sizeof(trailer));
  std::memcpy(file.data() + library.size(), &trailer, sizeof(trailer));
  trailer.checksum = checksum_of_file(file);
  std::memcpy(file.data() + library.size(), &trailer, sizeof(trailer));
  return file;
}

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

std::string file_fault(std::span<const char> file) {
  const std::string size = std::to_string(file.size());
  if (file.size() < sizeof(Trailer)) return "is not a plugin: it has only " + size + " bytes";
  if (!std::string_view(file.data(), file.size()).starts_with("\177ELF"))
    return "is not a shared library: it does not begin as one";
  const std::string remedy =
      ", or a tool such as strip or patchelf has changed it. Copy it anew, or build it again with "
      "`narrowcast build`";
  const Trailer trailer = trailer_of(file);
  if (!is_marked(trailer)) {
    return "is cut short, or is not a narrowcast plugin (its last bytes are not those that every "
           "plugin ends with)" +
           remedy;
  }
  if (trailer.library_bytes != file.size() - sizeof(trailer)) {
    return "is damaged (it was built with " + std::to_string(trailer.library_bytes) + " and " +
           std::to_string(sizeof(trailer)) + " bytes, and has " + size + ")" + remedy;
  }
  if (trailer.checksum != checksum_of_file(file))
    return "is damaged (its checksum is not that of its bytes)" + remedy;
  return build_fault(trailer.version, trailer.headers);
}

std::string plugin_fault(const std::string& path) {
  std::vector<char> file;
  if (std::string fault = read_file(path, file); !fault.empty()) return fault;
  return file_fault(file);
}

std::string build_fault(uint64_t version, uint64_t headers) {
  const char* const remedy = ": build it again with `narrowcast build`";
  const std::string own = std::to_string(NC_PLUGIN_VERSION);
  if (version != NC_PLUGIN_VERSION) {
    return "was built for plugin version " + std::to_string(version) +
           ", and this library reads version " + own + remedy;
  }
  if (headers != headers_hash())
    return "was built with other headers than this library, both of plugin version " + own + remedy;
  return "";
}

}  // namespace narrowcast
