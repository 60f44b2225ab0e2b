#include "runtime/optimizer/plain.hpp"

#include "runtime/optimizer/rule_table.hpp"
#include "runtime/plugin/export.hpp"
#include "states.hpp"

namespace narrowcast {

NC_DECLARE_MACHINES

namespace {

const nc_machine* variant(const char*) { return nullptr; }

}  // namespace

const nc_plugin& plain_plugin() {
  static constexpr nc_format kNoFormat{};
  static const PluginTable kTable(kNoFormat, RuleTable<Rules>::kFacts, States::kFacts,
                                  &baseline::cpu_machine(), NC_AVX_MACHINES, NC_CUDA_MACHINE,
                                  variant, nullptr);
  return *kTable.get();
}

}  // namespace narrowcast
