// What a launch on the CPU leaves as it is.
#pragma once

#include <cstdint>

#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

inline bool is_stopped(const nc_launch& launch) {
  return launch.found_inf != nullptr && *launch.found_inf != 0;
}

inline bool without_gradient(const nc_launch& launch, int64_t index) {
  return launch.steps != nullptr && launch.steps[index].grad == nullptr;
}

inline bool is_skipped(const nc_launch& launch, int64_t index) {
  return launch.verdict != nullptr && launch.verdict[index] < 0;
}

}  // namespace narrowcast::inline NC_VARIANT
