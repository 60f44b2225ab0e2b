// A buffer as a gather carries it: the ranks' pieces, without padding, and one of each run of equal
// neighbours. What the generated gathers are sequences of.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

// What a rank brings of the stored matrix, whose dimension of the matrix's rows is cut.
enum class Along {
  kRows,    // some of its rows: the pieces, one after the other, are the whole
  kColumns  // some of its columns, a run of every row
};

struct Pieces {
  nc_buffer buffer;
  const Layout& layout;
  bool scales;
  Along along;
  Extent equal;  // neighbours that are equal, along each stored dimension

  int64_t entry_bytes() const { return scales ? layout.scale_bytes : 1; }

  // Shapes, in entries, for a matrix: of the buffer with its padding, without it, and on the wire.
  Extent padded(Extent matrix) const {
    return scales ? scale_shape(layout, matrix) : data_shape(layout, matrix);
  }
  Extent used(Extent matrix) const {
    return scales ? scale_extent(layout, matrix) : data_shape(layout, matrix);
  }
  Extent compact(Extent matrix) const {
    const Extent all = used(matrix);
    return {ceil_div(all.rows, equal.rows), ceil_div(all.columns, equal.columns)};
  }
  int64_t compact_bytes(Extent matrix) const {
    const Extent shape = compact(matrix);
    return shape.rows * shape.columns * entry_bytes();
  }
};

inline Pieces data(nc_buffer buffer, const Layout& layout, Along along) {
  return {buffer, layout, false, along, {1, 1}};
}
inline Pieces scales(nc_buffer buffer, const Layout& layout, Along along, Extent equal = {1, 1}) {
  return {buffer, layout, true, along, equal};
}

// Calls carry(pieces) for each buffer that the gather of a phase carries, in the route's order.
template <class Gather, class Carry>
void carry_all(int32_t phase, const Carry& carry) {
  if constexpr (Gather::kColumnwiseDerived) {
    Gather::always(carry);
  } else if (phase == NC_BOTH) {
    Gather::both(carry);
  } else if (phase == NC_BACKWARD) {
    Gather::backward(carry);
  } else {
    Gather::forward(carry);
  }
}

}  // namespace narrowcast::inline NC_VARIANT
