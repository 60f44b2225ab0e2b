// The facts of nvfp4_1d, as the runtime's templates read them.
// Made from spec/nvfp4_1d.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::nvfp4_1d::inline NC_VARIANT {

struct Format {
  using Element = E2M1;
  using ScaleType = E4M3Scale;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 16,
      .scale_per_rows = 1,
      .scale_per_columns = 16,
      .scale_pad_rows = 128,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 4,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = true;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 64 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 64;
};

}  // namespace narrowcast::nvfp4_1d::inline NC_VARIANT
