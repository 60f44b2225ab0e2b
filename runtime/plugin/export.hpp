// What exports a table of functions: the machines that were compiled in, and the choice among them.
#pragma once

#include <span>

#include "runtime/plugin/table.h"

// Declares, in a format's namespace, the machines that the sources of each machine define.
// NC_WITH_AVX and NC_WITH_CUDA come from the build.
#define NC_DECLARE_MACHINES         \
  namespace baseline {              \
  const nc_machine& cpu_machine();  \
  }                                 \
  namespace avx2 {                  \
  const nc_machine& cpu_machine();  \
  }                                 \
  namespace avx512 {                \
  const nc_machine& cpu_machine();  \
  }                                 \
  namespace cuda {                  \
  const nc_machine& cuda_machine(); \
  }

#if defined(NC_WITH_AVX)
#define NC_AVX_MACHINES &avx2::cpu_machine(), &avx512::cpu_machine()
#else
#define NC_AVX_MACHINES nullptr, nullptr
#endif

#if defined(NC_WITH_CUDA)
#define NC_CUDA_MACHINE &cuda::cuda_machine()
#else
#define NC_CUDA_MACHINE nullptr
#endif

#define NC_EXPORT extern "C" __attribute__((visibility("default")))

namespace narrowcast {

// Of the texts of table.h and of all that it includes from runtime/, as they were when this was
// compiled.
uint64_t headers_hash();

// A plugin's table for the processor that it was loaded on. Lives as long as the plugin.
class PluginTable {
 public:
  PluginTable(const nc_format& format, std::span<const nc_update_rule> rules,
              std::span<const nc_state_format> states, const nc_machine* baseline,
              const nc_machine* avx2, const nc_machine* avx512, const nc_machine* cuda,
              const nc_machine* (*variant)(const char* name), decltype(nc_plugin::route) route);
  const nc_plugin* get() const { return &plugin_; }
  // The variant of that name, or nullptr if it is unknown or this processor cannot run it.
  const nc_machine* variant(const char* name) const;

 private:
  static constexpr int kVariants = 3;
  const nc_machine* machines_[kVariants] = {};
  const char* names_[kVariants + 1] = {};
  nc_plugin plugin_ = {};
};

}  // namespace narrowcast
