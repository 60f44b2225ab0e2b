#include "runtime/plugin/seal.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/plugin/elf.hpp"
#include "runtime/plugin/note.hpp"

namespace narrowcast {
namespace {

// Eight bytes at a time. Every step is a bijection of the value, so that whatever changes within
// eight bytes is certain to change the result.
class Checksum {
 public:
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 32;
  }
  void add(std::span<const char> bytes) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      add(word);
    }
    add(bytes.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

// Of all bytes but its own.
uint64_t checksum_of(std::span<const char> file, size_t note) {
  const size_t own = note + offsetof(NoteHead, checksum);
  Checksum checksum;
  checksum.add(file.first(own));
  checksum.add(file.subspan(own + sizeof(uint64_t)));
  return checksum.value();
}

}  // namespace

void seal(std::span<char> file, size_t note) {
  auto head = struct_at<NoteHead>(file, note);
  head.file_bytes = file.size();
  std::memcpy(file.data() + note, &head, sizeof(head));
  head.checksum = checksum_of(file, note);
  std::memcpy(file.data() + note, &head, sizeof(head));
}

std::string seal_fault(std::span<const char> file, size_t note) {
  const auto head = struct_at<NoteHead>(file, note);
  if (head.file_bytes == 0)
    return "is not finished: after it was linked, narrowcast_seal has not run. Build it again";
  const std::string remedy =
      ", or a tool such as strip or patchelf has changed it. Copy it anew, or build it again with "
      "`narrowcast build`";
  if (head.file_bytes > file.size()) {
    return "is cut short (it was built with " + std::to_string(head.file_bytes) +
           " bytes, and has " + std::to_string(file.size()) + ")" + remedy;
  }
  if (head.file_bytes != file.size() || head.checksum != checksum_of(file, note))
    return "is damaged (its checksum is not that of its bytes)" + remedy;
  return "";
}

}  // namespace narrowcast
