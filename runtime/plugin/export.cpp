#include "runtime/plugin/export.hpp"

#include <cstring>

namespace narrowcast {
namespace {

#if defined(__x86_64__)
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}
#else
bool runs_avx2() { return false; }
bool runs_avx512() { return false; }
#endif

}  // namespace

uint64_t headers_hash() { return NC_HEADERS_HASH; }

PluginTable::PluginTable(const nc_format& format, std::span<const nc_update_rule> rules,
                         std::span<const nc_state_format> states, const nc_machine* baseline,
                         const nc_machine* avx2, const nc_machine* avx512, const nc_machine* cuda,
                         const nc_machine* (*variant)(const char* name),
                         decltype(nc_plugin::route) route) {
  int count = 0;
  const auto add = [&](const char* name, const nc_machine* machine, bool runs) {
    if (machine == nullptr || !runs) return;
    names_[count] = name;
    machines_[count++] = machine;
  };
  add("baseline", baseline, true);
  add("avx2", avx2, runs_avx2());
  add("avx512", avx512, runs_avx512());
  plugin_ = {
      .version = NC_PLUGIN_VERSION,
      .headers = headers_hash(),
      .format = &format,
      .update_rules = rules.data(),
      .update_rule_count = std::ssize(rules),
      .state_formats = states.data(),
      .state_format_count = std::ssize(states),
      .cpu = machines_[count - 1],
      .cuda = cuda,
      .cpu_variants = names_,
      .cpu_variant = variant,
      .route = route,
  };
}

const nc_machine* PluginTable::variant(const char* name) const {
  for (int i = 0; i < kVariants && names_[i] != nullptr; ++i) {
    if (std::strcmp(names_[i], name) == 0) return machines_[i];
  }
  return nullptr;
}

}  // namespace narrowcast
