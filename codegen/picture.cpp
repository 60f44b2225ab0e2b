#include "codegen/picture.hpp"

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

constexpr int64_t kBlocks = 2;  // shown in each direction
constexpr size_t kMargin = 10, kCell = 18;

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string range(int64_t first, int64_t last) {
  return std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
}

// "scale[0-15, 3]": the entries of the stored scale matrix that hold the block's scale.
std::string scale_of_block(const Layout& layout, int64_t down, int64_t across) {
  const int64_t row = down * layout.block_rows, column = across * layout.block_columns;
  const Extent first = scale_position(layout, row, column);
  const Extent last =
      scale_position(layout, row + layout.block_rows - 1, column + layout.block_columns - 1);
  return "scale[" + range(first.rows, last.rows) + ", " + range(first.columns, last.columns) + "]";
}

std::string rule() {
  std::string line(kMargin, ' ');
  for (int64_t i = 0; i < kBlocks; ++i) line += "+" + std::string(kCell, '-');
  return line + "+--";
}

std::string column_numbers(const Layout& layout) {
  std::string line = padded("column", kMargin);
  for (int64_t i = 0; i <= kBlocks; ++i) {
    const std::string number = std::to_string(i * layout.block_columns);
    line += i == kBlocks ? number : padded(number, kCell + 1);
  }
  return line + "\n";
}

}  // namespace

std::string picture_of_blocks(const nc_layout& layout) {
  if (spans_tensor(layout)) return "every element: scale[0]";
  std::string text = column_numbers(layout);
  for (int64_t down = 0; down < kBlocks; ++down) {
    text += rule() + "\n" + padded("row " + std::to_string(down * layout.block_rows), kMargin);
    for (int64_t across = 0; across < kBlocks; ++across) {
      text += "|" + padded(" " + scale_of_block(layout, down, across), kCell);
    }
    text += "|\n";
  }
  return text + rule();
}

std::string packing_of(const nc_layout& layout) {
  switch (layout.element_bits) {
    case 4:
      return "A byte holds two elements of a stored row, the first in the low four bits.";
    case 6:
      return "Three bytes hold four elements of a stored row, low bits first.";
    default:
      return "A byte holds one element.";
  }
}

}  // namespace narrowcast::codegen
