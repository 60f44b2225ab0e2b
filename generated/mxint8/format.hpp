// The facts of mxint8, as the runtime's templates read them.
// Made from spec/mxint8.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/scale_rule.hpp"

namespace narrowcast::mxint8::inline NC_VARIANT {

struct Format {
  using Element = MxInteger8;
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
      .element_bits = 8,
      .scale_bytes = 1,
  };
  static constexpr Layout kColumnwise = {
      .block_rows = 32,
      .block_columns = 1,
      .scale_per_rows = 32,
      .scale_per_columns = 1,
      .scale_pad_rows = 4,
      .scale_pad_columns = 128,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 1,
  };

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = false;
  // A tile of 32 rows holds whole blocks.
  static constexpr int kTileRows = 32;
};

}  // namespace narrowcast::mxint8::inline NC_VARIANT
