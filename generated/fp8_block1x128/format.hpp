// The facts of fp8_block1x128, as the runtime's templates read them.
// Made from spec/fp8_block1x128.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::fp8_block1x128::inline NC_VARIANT {

struct Format {
  using Element = E4M3;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 1,
      .block_columns = 128,
      .scale_per_rows = 1,
      .scale_per_columns = 128,
      .scale_pad_rows = 1,
      .scale_pad_columns = 4,
      .transposed = false,
      .scale_transposed = true,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 128 rows holds whole blocks.
  static constexpr int kTileRows = 128;
};

}  // namespace narrowcast::fp8_block1x128::inline NC_VARIANT
