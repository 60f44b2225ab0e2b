// What a plugin's file says of itself before anything of it runs: an ELF note. The linker carries
// it into the file, narrowcast_seal then writes the seal, and the loader looks for both.
#pragma once

#include <cstddef>
#include <iterator>

#include "runtime/plugin/structs.hpp"

// A plugin defines its note as
//   [[gnu::used, gnu::section(NC_NOTE_SECTION)]] alignas(8) constexpr Note kNote = make_note();
// Linkers keep notes that nothing refers to. The alignment is that of notes in 64-bit files, which
// compilers would raise for so large a constant.
#define NC_NOTE_SECTION ".note.narrowcast"

namespace narrowcast {

// How every version's note begins, so that a file that is damaged is told from one that is of
// another version.
struct NoteHead {
  uint32_t name_bytes, bytes, type;  // as ELF has it: of `name`, and of all behind it
  char name[12];
  uint64_t file_bytes;  // 0 until the file is sealed
  uint64_t checksum;    // of the file, with 0 in this place
  uint32_t magic;       // NC_PLUGIN_MAGIC
  uint32_t version;     // NC_PLUGIN_VERSION
};
inline constexpr char kNoteName[12] = "narrowcast";
inline constexpr uint32_t kNoteType = 1;
inline constexpr size_t kNameEnd = offsetof(NoteHead, file_bytes);

// nc_struct without a pointer, for nothing of the file is in its place yet.
struct NoteStruct {
  char name[16];  // ends with a zero
  uint64_t size, digest;
};

// The same as nc_plugin says of itself.
struct Note {
  NoteHead head;
  uint32_t size;
  uint32_t struct_count;
  uint64_t digest;
  NoteStruct structs[std::size(kStructs)];
};
static_assert(sizeof(Note) == sizeof(NoteHead) + 16 + sizeof(kStructs) / sizeof(nc_struct) * 32,
              "there is padding");

constexpr NoteStruct noted(const nc_struct& one) {
  NoteStruct note{.name = {}, .size = one.size, .digest = one.digest};
  const std::string_view name = one.name;
  if (name.size() >= sizeof(note.name)) throw "a struct's name is too long for the note";
  for (size_t i = 0; i < name.size(); ++i) note.name[i] = name[i];
  return note;
}

constexpr Note make_note() {
  Note note{};
  note.head.name_bytes = sizeof("narrowcast");
  note.head.bytes = sizeof(Note) - kNameEnd;
  note.head.type = kNoteType;
  for (size_t i = 0; i < sizeof(kNoteName); ++i) note.head.name[i] = kNoteName[i];
  note.head.magic = NC_PLUGIN_MAGIC;
  note.head.version = NC_PLUGIN_VERSION;
  note.size = sizeof(nc_plugin);
  note.struct_count = std::size(kStructs);
  note.digest = kStructsDigest;
  for (size_t i = 0; i < std::size(kStructs); ++i) note.structs[i] = noted(kStructs[i]);
  return note;
}

}  // namespace narrowcast
