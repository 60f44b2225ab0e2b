#include "runtime/optimizer/plain.hpp"

#include "runtime/optimizer/rule_table.hpp"
#include "runtime/plugin/export.hpp"

namespace narrowcast {

NC_DECLARE_MACHINES

namespace {

const nc_machine* variant(const char*) { return nullptr; }

const PluginTable& table() {
  static constexpr nc_format kNoFormat{};
  static const PluginTable kTable(kNoFormat, RuleTable<Rules>::kFacts, &baseline::cpu_machine(),
                                  NC_AVX_MACHINES, NC_CUDA_MACHINE, variant, nullptr);
  return kTable;
}

}  // namespace

const nc_machine& plain_cpu() { return *table().get()->cpu; }
std::span<const nc_update_rule> plain_rules() { return RuleTable<Rules>::kFacts; }
const nc_machine* plain_cuda() { return table().get()->cuda; }

}  // namespace narrowcast
