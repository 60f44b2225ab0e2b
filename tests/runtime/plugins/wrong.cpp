// Shared libraries that are not what narrowcast loads; NC_WRONG says in which way.
#include "runtime/plugin/export.hpp"

#define NC_FOREIGN 0        // ends the process when it is loaded
#define NC_SILENT 1         // exports nothing
#define NC_NOTHING 2        // has no table
#define NC_OLD_TABLE 3      // its table is of another version
#define NC_CHANGED_TABLE 4  // its table is of other headers
#define NC_EMPTY 5          // its table has no format
#define NC_ZERO_BLOCKS 6    // its format has blocks without a size

namespace narrowcast {
namespace {

#if NC_WRONG >= NC_OLD_TABLE
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

#if NC_WRONG == NC_FOREIGN
[[gnu::constructor]] static void end_the_process() { __builtin_trap(); }
#elif NC_WRONG == NC_SILENT
NC_EXPORT int some_other_function() { return 0; }
#elif NC_WRONG == NC_NOTHING
NC_EXPORT const nc_plugin* narrowcast_plugin() { return nullptr; }
#else
NC_EXPORT const nc_plugin* narrowcast_plugin() {
  using namespace narrowcast;
  static const char* const kVariants[] = {"baseline", nullptr};
  static nc_plugin table{};
  table = {.version = NC_WRONG == NC_OLD_TABLE ? 0 : NC_PLUGIN_VERSION,
           .headers = headers_hash() + (NC_WRONG == NC_CHANGED_TABLE),
           .format = NC_WRONG == NC_EMPTY ? nullptr : &kFormat,
           .update_rules = nullptr,
           .update_rule_count = 0,
           .state_formats = nullptr,
           .state_format_count = 0,
           .cpu = &kMachine,
           .cuda = nullptr,
           .cpu_variants = kVariants,
           .cpu_variant = variant,
           .route = route};
  return &table;
}
#endif
