// One value for each R x C block of a kRows x kColumns tile of the CPU, and one scale.
#pragma once

#include <algorithm>

#include "runtime/numeric/scale_rule.hpp"

namespace narrowcast::inline NC_VARIANT {

template <int kRows, int kColumns, int R, int C, class StoredType>
struct CpuScales {
  using Stored = StoredType;
  static constexpr int kDown = kRows / R, kAcross = kColumns / C;
  alignas(64) float multiplier[kDown][kAcross];
  alignas(64) Stored stored[kDown][kAcross];
};

template <int kRows, int kColumns, int R, int C>
struct CpuBlocks {
  static constexpr int kDown = kRows / R, kAcross = kColumns / C;
  int down, across;  // blocks that the tile has
  bool keeps_nonfinite;
  alignas(64) float value[kDown][kAcross];

  template <class Rule>
  NC_MACHINE auto map(const Rule& rule) const {
    CpuScales<kRows, kColumns, R, C, decltype(rule(0.0f).stored)> scales;
    // Bounds that the compiler can see: g++ warns of what it thinks might lie behind an array.
    const int rows = std::min(down, kDown), columns = std::min(across, kAcross);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const float amax = value[i][j];
        const auto scale = scale_or_nan(rule, amax, keeps_nonfinite && !is_finite(amax));
        scales.multiplier[i][j] = scale.multiplier;
        scales.stored[i][j] = scale.stored;
      }
    }
    return scales;
  }
};

}  // namespace narrowcast::inline NC_VARIANT
