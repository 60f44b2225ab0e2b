// One matrix of a usage as it is stored, data or scales: its blocks, its padding, its numbers.
#pragma once

#include <string>

#include "codegen/picture/axis.hpp"
#include "codegen/picture/canvas.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {

struct StoredMatrix {
  int x, y;  // of its corner; ticks stand above and to the left
  Axis across, down;
  bool exchanged;  // stored columns are rows of the matrix
  bool counted;    // a cell tells how many entries it has
};

// Of a matrix of the given extent, in elements and in scales.
StoredMatrix data_matrix(const nc_layout& layout, Extent matrix, int x, int y);
StoredMatrix scale_matrix(const nc_layout& layout, Extent matrix, int x, int y);

void draw(Canvas& canvas, const StoredMatrix& matrix);

// Stored scales of one block, in the matrix's own coordinates. The block does not span the tensor.
Extent copies_of_scale(const nc_layout& layout);

// One style for each of four neighbours, so that a block is found again.
std::string block_style(Extent block);

// "0,1": of an element or a block, by its row and column.
std::string name_of(Extent place);

// "128 x 4", with the sign of multiplication.
std::string times(int64_t rows, int64_t columns);

}  // namespace narrowcast::codegen
