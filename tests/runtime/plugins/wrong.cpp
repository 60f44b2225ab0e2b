// Shared libraries that are not what narrowcast loads; NC_WRONG says in which way.
#include <algorithm>
#include <iterator>

#include "runtime/plugin/export.hpp"
#include "runtime/plugin/note.hpp"

#define NC_FOREIGN 0        // has no note
#define NC_SILENT 1         // exports nothing
#define NC_OLD 2            // its note is of another version
#define NC_CHANGED 3        // its note is of other structs
#define NC_UNMARKED 4       // its note is right, its table has no mark
#define NC_OLD_TABLE 5      // its table is of another version
#define NC_CHANGED_TABLE 6  // its table is of other structs
#define NC_EMPTY 7          // its table has no format
#define NC_ZERO_BLOCKS 8    // its format has blocks without a size

namespace narrowcast {
namespace {

[[maybe_unused]] constexpr void rename(NoteStruct& one) { one.name[3] = 'R'; }
[[maybe_unused]] constexpr void rename(nc_struct& one) { one.name = "nc_Route"; }

// As if somebody had forgotten a new version.
template <class Struct>
[[maybe_unused]] constexpr void change(Struct* begin, Struct* end) {
  for (Struct* one = begin; one != end; ++one) {
    const std::string_view name = one->name;
    if (name == "nc_tensor") one->size += 8;
    if (name == "nc_step") one->digest += 1;
    if (name == "nc_route") rename(*one);
  }
}

#if NC_WRONG != NC_FOREIGN
constexpr Note wrong_note() {
  Note note = make_note();
  if (NC_WRONG == NC_OLD) note.head.version = 0;
  if (NC_WRONG == NC_CHANGED) {
    change(std::begin(note.structs), std::end(note.structs));
    note.digest += 1;
  }
  return note;
}

[[gnu::used, gnu::section(NC_NOTE_SECTION)]] alignas(8) constexpr Note kNote = wrong_note();
#endif

#if NC_WRONG >= NC_UNMARKED
constexpr nc_layout kZeroBlocks = {.block_rows = 32,
                                   .block_columns = 32,
                                   .scale_per_rows = 0,
                                   .scale_per_columns = 0,
                                   .scale_pad_rows = 1,
                                   .scale_pad_columns = 1,
                                   .transposed = 0,
                                   .scale_transposed = 0,
                                   .element_bits = 8,
                                   .scale_bytes = 1};
constexpr nc_format kFormat = {.name = "zero_blocks",
                               .summary = "",
                               .reference = "",
                               .element = "",
                               .packing = "",
                               .scale = "",
                               .scale_dtype = "uint8",
                               .tensor_scale = nullptr,
                               .scale_rule = "",
                               .amax = "current",
                               .rowwise = kZeroBlocks,
                               .columnwise = kZeroBlocks,
                               .columnwise_derived = 0,
                               .tensor_amax = 0,
                               .row_step = 32,
                               .shard_row_step = 32,
                               .bits_per_element = 8,
                               .wire_bits_per_element = 8,
                               .rules = {},
                               .products = {},
                               .tensor_range = 0,
                               .significant_bits = 8};
constexpr nc_machine kMachine = {};
const nc_machine* variant(const char*) { return &kMachine; }
void route(int32_t, int32_t, int64_t, int64_t, int64_t, int64_t, nc_route*) {}
#endif

}  // namespace
}  // namespace narrowcast

#if NC_WRONG == NC_SILENT
NC_EXPORT int some_other_function() { return 0; }
#elif NC_WRONG <= NC_CHANGED
// Nothing of what its note refuses may run.
[[gnu::constructor]] static void end_the_process() { __builtin_trap(); }
#else
NC_EXPORT const nc_plugin* narrowcast_plugin() {
  using namespace narrowcast;
  static nc_struct structs[std::size(kStructs)];
  std::copy(std::begin(kStructs), std::end(kStructs), structs);
  static const char* const kVariants[] = {"baseline", nullptr};
  static nc_plugin table{};
  table = {.magic = NC_WRONG == NC_UNMARKED ? 0 : NC_PLUGIN_MAGIC,
           .version = NC_WRONG == NC_OLD_TABLE ? 0 : NC_PLUGIN_VERSION,
           .size = sizeof(nc_plugin),
           .struct_count = std::size(structs),
           .structs = structs,
           .digest = kStructsDigest,
           .format = NC_WRONG == NC_EMPTY ? nullptr : &kFormat,
           .cpu = &kMachine,
           .cuda = nullptr,
           .cpu_variants = kVariants,
           .cpu_variant = variant,
           .route = route};
  if (NC_WRONG == NC_CHANGED_TABLE) {
    change(std::begin(structs), std::end(structs));
    table.digest += 1;
  }
  return &table;
}
#endif
