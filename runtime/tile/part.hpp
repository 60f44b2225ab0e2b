// The part of a matrix that a launch has: all of it, or a flat shard, which begins and ends
// anywhere. The rest of a tile is other owners': it counts as zero, and is never written. What the
// owners tell each other of blocks and bytes that they share lies in slots of the exchange.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/numeric/float_bits.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

struct Part {
  int64_t begin, end;  // elements of the matrix, row by row
  const nc_seams* seams;
  float* exchange;
  bool collects;
  bool keeps_nonfinite;  // in amaxes: NaN counts, and the scale of what is not finite is NaN

  // `collects`: whether the launch writes to the exchange, or reads it.
  NC_EVERYWHERE Part(const nc_tensor& tensor, const nc_launch& launch, bool collects)
      : begin(tensor.before),
        end(tensor.rows * tensor.columns - tensor.after),
        seams(launch.exchange == nullptr ? nullptr : tensor.seams),
        exchange(launch.exchange),
        collects(collects),
        keeps_nonfinite(!collects && launch.keep_nonfinite != 0) {}

  // The largest magnitude that counts in an amax, as bits.
  NC_EVERYWHERE uint32_t most() const { return keeps_nonfinite ? kMagnitudeMask : kInfinityBits; }

  NC_EVERYWHERE bool owns(int64_t element) const { return begin <= element && element < end; }

  NC_EVERYWHERE bool is_whole(Extent matrix) const {
    return begin == 0 && end == matrix.rows * matrix.columns;
  }

  // Whether an element of a box is in it. A row of the box may be when it ends behind `begin`, and
  // the first of those decides.
  NC_EVERYWHERE bool touches(Extent matrix, Box box) const {
    if (owns(box.begin.rows * matrix.columns + box.begin.columns)) return true;
    if (box.end.rows > matrix.rows) box.end.rows = matrix.rows;
    if (box.end.columns > matrix.columns) box.end.columns = matrix.columns;
    int64_t row = box.begin.rows;
    if (begin >= box.end.columns) {
      const int64_t after = floor_div(begin - box.end.columns, matrix.columns) + 1;
      row = after > row ? after : row;
    }
    return begin < end && row < box.end.rows && row * matrix.columns + box.begin.columns < end;
  }

  // Whether it has an element of the R x C block that holds this one.
  template <int R, int C>
  NC_EVERYWHERE bool touches_block_of(Extent matrix, int64_t row, int64_t column) const {
    if (is_whole(matrix)) return true;
    const Extent first{floor_div(row, R) * R, floor_div(column, C) * C};
    return touches(matrix, {first, {first.rows + R, first.columns + C}});
  }

  // Calls action(seam) for each of those whose blocks are R x C.
  template <int R, int C, class Action>
  NC_EVERYWHERE void for_each_seam(const Action& action) const {
    for (const nc_seam& seam : seams->blocks) {
      if (seam.block_rows == R && seam.block_columns == C) action(seam);
    }
  }

  // If a block is a seam's: tells the amax of its own elements, or takes that of all owners. `row`,
  // `column`: the block, counted in blocks.
  NC_EVERYWHERE void share_amax(const nc_seam& seam, int64_t row, int64_t column,
                                float& amax) const {
    const int64_t down = row - seam.row, across = column - seam.column;
    if (down < 0 || down >= seam.rows || across < 0 || across >= seam.columns) return;
    float* slot = exchange + seam.slot + down * seam.columns + across;
    if (collects) {
      *slot = amax;
    } else {
      amax = *slot;
    }
  }

  // Whether owners share bytes.
  NC_EVERYWHERE bool has_values() const {
    return seams->begin[0] < seams->end[0] || seams->begin[1] < seams->end[1];
  }

  // Whether they share bytes of some of the elements `first` to `last`.
  NC_EVERYWHERE bool has_values(int64_t first, int64_t last) const {
    return (first < seams->end[0] && last > seams->begin[0]) ||
           (first < seams->end[1] && last > seams->begin[1]);
  }

  // An element's value, of whichever owner, where bytes are shared: told, if it is the own one, and
  // known otherwise; zero elsewhere.
  NC_EVERYWHERE float value_of(int64_t element, float own) const {
    for (int side = 0; side < 2; ++side) {
      if (element < seams->begin[side] || element >= seams->end[side]) continue;
      float* slot = exchange + seams->slot[side] + (element - seams->begin[side]);
      if (owns(element)) {
        if (collects) *slot = own;
      } else if (!collects) {
        return *slot;
      }
    }
    return own;
  }
};

}  // namespace narrowcast::inline NC_VARIANT
