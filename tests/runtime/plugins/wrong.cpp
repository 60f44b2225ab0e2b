// Shared libraries that are not what narrowcast loads; NC_WRONG says in which way.
#include "runtime/plugin/export.hpp"

#define NC_FOREIGN 0
#define NC_UNMARKED 1
#define NC_OLD 2
#define NC_BROKEN 3

#if NC_WRONG == NC_FOREIGN
NC_EXPORT int some_other_function() { return 0; }
#else
NC_EXPORT const nc_plugin* narrowcast_plugin() {
  static nc_plugin table{};
  table.magic = NC_WRONG == NC_UNMARKED ? 0 : NC_PLUGIN_MAGIC;
  table.version = NC_WRONG == NC_OLD ? 0 : NC_PLUGIN_VERSION;
  table.size = sizeof(nc_plugin);
  return &table;
}
#endif
