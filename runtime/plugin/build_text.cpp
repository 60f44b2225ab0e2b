#include "runtime/plugin/build_text.hpp"

#include <algorithm>
#include <vector>

#include "runtime/plugin/elf.hpp"

namespace narrowcast {
namespace {

const char* const kRemedy = ": build it again with `narrowcast build`";

// The structs that a plugin's compiler did not lay out as this library's did, in words.
std::string other_structs(std::span<const nc_struct> theirs) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (const nc_struct& own : kStructs) {
    const auto same_name = [&](const nc_struct& one) {
      return one.name == std::string_view(own.name);
    };
    const auto other = std::find_if(theirs.begin(), theirs.end(), same_name);
    if (other == theirs.end()) {
      add(own.name + std::string(" (not there)"));
    } else if (other->size != own.size) {
      add(own.name + std::string(" (") + std::to_string(other->size) + " bytes, not " +
          std::to_string(own.size) + ")");
    } else if (other->digest != own.digest) {
      add(own.name + std::string(" (other fields)"));
    }
  }
  return names.empty() ? "structs that this library does not know" : names;
}

std::string version_fault(uint32_t version) {
  if (version == NC_PLUGIN_VERSION) return "";
  return "was built for plugin version " + std::to_string(version) +
         ", and this library reads version " + std::to_string(NC_PLUGIN_VERSION) + kRemedy;
}

std::string structs_fault(uint32_t size, uint64_t digest, std::span<const nc_struct> structs) {
  if (size == sizeof(nc_plugin) && digest == kStructsDigest) return "";
  return "was built from another text of plugin version " + std::to_string(NC_PLUGIN_VERSION) +
         ", with other " + other_structs(structs) + kRemedy;
}

}  // namespace

std::string text_fault(std::span<const char> file, size_t offset) {
  const auto head = struct_at<NoteHead>(file, offset);
  if (head.magic != NC_PLUGIN_MAGIC) return "is not a narrowcast plugin: its note is not marked";
  if (const std::string fault = version_fault(head.version); !fault.empty()) return fault;
  if (!lies_within(offset, offsetof(Note, structs), file.size()))
    return std::string("has a note that the file's end cuts short") + kRemedy;

  // Structs of another text may be fewer or more, and are read as far as the file goes.
  const auto size = struct_at<uint32_t>(file, offset + offsetof(Note, size));
  const auto count = struct_at<uint32_t>(file, offset + offsetof(Note, struct_count));
  const auto digest = struct_at<uint64_t>(file, offset + offsetof(Note, digest));
  std::vector<NoteStruct> noted;
  for (size_t at = offset + offsetof(Note, structs);
       noted.size() < count && lies_within(at, sizeof(NoteStruct), file.size());
       at += sizeof(NoteStruct)) {
    noted.push_back(struct_at<NoteStruct>(file, at));
    noted.back().name[sizeof(NoteStruct::name) - 1] = '\0';
  }
  std::vector<nc_struct> structs;
  structs.reserve(noted.size());
  for (const NoteStruct& one : noted) structs.push_back({one.name, one.size, one.digest});
  return structs_fault(size, digest, structs);
}

std::string text_fault(const nc_plugin& table) {
  if (const std::string fault = version_fault(table.version); !fault.empty()) return fault;
  return structs_fault(table.size, table.digest,
                       {table.structs, table.structs == nullptr ? 0 : table.struct_count});
}

}  // namespace narrowcast
