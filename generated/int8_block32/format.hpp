// The facts of int8_block32, as the runtime's templates read them.
// Made from spec/int8_block32.toml; edit that and run `make regenerate`.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/scale_rule.hpp"

namespace narrowcast::int8_block32::inline NC_VARIANT {

struct Format {
  using Element = Integer8;
  using ScaleType = F32;

  static constexpr Layout kRowwise = {
      .block_rows = 32,
      .block_columns = 32,
      .scale_per_rows = 32,
      .scale_per_columns = 32,
      .scale_pad_rows = 1,
      .scale_pad_columns = 1,
      .transposed = false,
      .scale_transposed = false,
      .element_bits = 8,
      .scale_bytes = 4,
  };
  static constexpr Layout kColumnwise = mirror(kRowwise);

  static constexpr bool kTensorAmax = false;
  static constexpr bool kDelayedAmax = false;
  static constexpr bool kColumnwiseDerived = true;
  // A tile of 32 rows holds whole blocks.
  static constexpr int kTileRows = 32;
};

}  // namespace narrowcast::int8_block32::inline NC_VARIANT
