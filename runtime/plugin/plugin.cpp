// The table that a format's plugin exports: compiled once for each format. The build names the
// format, NC_FORMAT, and finds its generated headers.
#include "gather.hpp"
#include "runtime/gather/route.hpp"
#include "runtime/optimizer/rule_table.hpp"
#include "runtime/plugin/export.hpp"
#include "states.hpp"

namespace narrowcast::NC_FORMAT {

NC_DECLARE_MACHINES

namespace {

const nc_machine* variant(const char* name);

const PluginTable& table() {
  static const PluginTable kTable(kFacts, RuleTable<Rules>::kFacts, States::kFacts,
                                  &baseline::cpu_machine(), NC_AVX_MACHINES, NC_CUDA_MACHINE,
                                  variant, route_of<Gather>);
  return kTable;
}

const nc_machine* variant(const char* name) { return table().variant(name); }

}  // namespace
}  // namespace narrowcast::NC_FORMAT

NC_EXPORT const nc_plugin* narrowcast_plugin() { return narrowcast::NC_FORMAT::table().get(); }
