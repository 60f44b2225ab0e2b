// Shared libraries that are not what narrowcast loads; NC_WRONG says in which way.
#include <algorithm>
#include <iterator>

#include "runtime/plugin/export.hpp"
#include "runtime/plugin/structs.hpp"

#define NC_FOREIGN 0
#define NC_UNMARKED 1
#define NC_OLD 2
#define NC_CHANGED 3
#define NC_BROKEN 4

#if NC_WRONG == NC_FOREIGN
NC_EXPORT int some_other_function() { return 0; }
#else
NC_EXPORT const nc_plugin* narrowcast_plugin() {
  static nc_struct structs[std::size(narrowcast::kStructs)];
  std::copy(std::begin(narrowcast::kStructs), std::end(narrowcast::kStructs), structs);
  static nc_plugin table{};
  table.magic = NC_WRONG == NC_UNMARKED ? 0 : NC_PLUGIN_MAGIC;
  table.version = NC_WRONG == NC_OLD ? 0 : NC_PLUGIN_VERSION;
  table.size = sizeof(nc_plugin);
  table.struct_count = std::size(structs);
  table.structs = structs;
  table.digest = narrowcast::kStructsDigest;
  if (NC_WRONG == NC_CHANGED) {  // as if somebody had forgotten a new version
    const auto named = [](std::string_view name) {
      return std::find_if(std::begin(structs), std::end(structs),
                          [=](const nc_struct& one) { return one.name == name; });
    };
    named("nc_tensor")->size += 8;
    named("nc_step")->digest += 1;
    named("nc_route")->name = "nc_road";
    table.digest += 1;
  }
  return &table;
}
#endif
