#include "runtime/plugin/file_checks.hpp"

#include "runtime/plugin/build_text.hpp"
#include "runtime/plugin/elf.hpp"
#include "runtime/plugin/seal.hpp"

namespace narrowcast {

std::string file_fault(std::span<const char> file) {
  const auto [fault, note] = find_note(file);
  if (!fault.empty()) return fault;
  if (const std::string damage = seal_fault(file, note); !damage.empty()) return damage;
  return text_fault(file, note);
}

std::string plugin_fault(const std::string& path) {
  std::vector<char> file;
  if (std::string fault = read_file(path, file); !fault.empty()) return fault;
  return file_fault(file);
}

}  // namespace narrowcast
