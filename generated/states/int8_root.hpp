// The state format int8_root, for the update loops.
// Made from spec/states/int8_root.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/state/root_code.hpp"

namespace narrowcast::state_int8_root::inline NC_VARIANT {

struct State {
  static constexpr const char* kName = "int8_root";
  static constexpr const char* kSummary =
      "Eight bits of a signed square root or of a fourth root, under one fp32 scale for each 128 "
      "of them.";
  static constexpr const char* kReference =
      "docs/numerics.md, State formats; why it: docs/optimizers.md";
  static constexpr int kBlock = 128;
  static constexpr int kRoots[] = {2, 4};
  using Signed = RootCode<kRoots[0], true>;
  using Nonnegative = RootCode<kRoots[1], false>;
};

}  // namespace narrowcast::state_int8_root::inline NC_VARIANT
