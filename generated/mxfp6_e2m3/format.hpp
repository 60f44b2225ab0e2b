// The facts of mxfp6_e2m3, as the runtime's templates read them.
// Made from spec/mxfp6_e2m3.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT {

struct Format {
  using Element = E2M3;
  using ScaleType = E8M0;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 32,
      .scale_per_rows = 1,
      .scale_per_columns = 32,
      .scale_pad_rows = 128,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 6,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 64 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 64;
};

}  // namespace narrowcast::mxfp6_e2m3::inline NC_VARIANT
