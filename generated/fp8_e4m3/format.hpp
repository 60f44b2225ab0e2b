// The facts of fp8_e4m3, as the runtime's templates read them.
// Made from spec/fp8_e4m3.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/scale_rule.hpp"
#include "runtime/numeric/small_float.hpp"

namespace narrowcast::fp8_e4m3::inline NC_VARIANT {

struct Format {
  using Element = E4M3;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 0,
      .block_columns = 0,
      .scale_per_rows = 0,
      .scale_per_columns = 0,
      .scale_pad_rows = 0,
      .scale_pad_columns = 0,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = true;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = true;
  // A tile of 32 rows stores transposed data in runs of at least 32 bytes.
  static constexpr int kTileRows = 32;
};

}  // namespace narrowcast::fp8_e4m3::inline NC_VARIANT
