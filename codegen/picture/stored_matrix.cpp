#include "codegen/picture/stored_matrix.hpp"

namespace narrowcast::codegen {
namespace {

using Kind = Segment::Kind;

constexpr int kTwoLines = 30;  // the height that a cell needs for them

Area cell_of(const StoredMatrix& matrix, const Segment& down, const Segment& across) {
  return {matrix.x + across.at, matrix.y + down.at, across.length, down.length};
}

// The entry that each segment begins with, and the end.
void draw_ticks(Canvas& canvas, const StoredMatrix& matrix) {
  constexpr int kAbove = 6, kBeside = 6, kFoot = 4;
  canvas.open_line();
  for (const auto& [entry, at] : ticks(matrix.across)) {
    canvas.text("middle tick", matrix.x + at, matrix.y - kAbove, std::to_string(entry));
  }
  canvas.close_line();
  canvas.open_line();
  for (const auto& [entry, at] : ticks(matrix.down)) {
    canvas.text("end tick", matrix.x - kBeside, matrix.y + at + kFoot, std::to_string(entry));
  }
  canvas.close_line();
}

// A block's part of the buffer, under the block's numbers in the matrix.
void draw_block(Canvas& canvas, const StoredMatrix& matrix, const Segment& down,
                const Segment& across) {
  const Extent block = exchanged({down.block, across.block}, matrix.exchanged);
  const Area cell = cell_of(matrix, down, across);
  const std::string name = name_of(block);
  const int64_t entries = (down.end - down.begin) * (across.end - across.begin);
  const std::string copies = "\u00d7" + std::to_string(entries);
  if (!matrix.counted || entries == 1) {
    canvas.cell(block_style(block), cell, "", name);
  } else if (cell.height < kTwoLines) {
    canvas.cell(block_style(block), cell, "tick", name + " " + copies);
  } else {
    const int half = cell.height / 2;
    canvas.box(block_style(block), cell);
    canvas.label("", {cell.x, cell.y + 2, cell.width, half}, name);
    canvas.label("tick", {cell.x, cell.y + half - 2, cell.width, half}, copies);
  }
}

void draw_padding(Canvas& canvas, const StoredMatrix& matrix) {
  const Segment &right = matrix.across.segments.back(), &bottom = matrix.down.segments.back();
  const bool beside = right.kind == Kind::kPadding, below = bottom.kind == Kind::kPadding;
  const auto strip = [&](Area area, int64_t rows, int64_t columns) {
    canvas.open_line();
    canvas.box("padding", area, "zero padding: " + times(rows, columns));
    canvas.cell("plate", {area.x + area.width / 2 - 18, area.y + area.height / 2 - 8, 36, 16},
                "tick", "zeros");
    canvas.close_line();
  };
  if (beside) {
    const int height = below ? bottom.at : matrix.down.length();
    strip({matrix.x + right.at, matrix.y, right.length, height}, below ? bottom.begin : bottom.end,
          right.end - right.begin);
  }
  if (below) {
    strip({matrix.x, matrix.y + bottom.at, matrix.across.length(), bottom.length},
          bottom.end - bottom.begin, right.end);
  }
}

}  // namespace

StoredMatrix data_matrix(const nc_layout& layout, Extent matrix, int x, int y) {
  const Extent stored = data_extent(layout, matrix);
  const Extent block = spans_tensor(layout) ? stored
                                            : exchanged({layout.block_rows, layout.block_columns},
                                                        layout.transposed);
  return {x,
          y,
          axis_of(stored.columns, stored.columns, block.columns, Side::kAcross),
          axis_of(stored.rows, stored.rows, block.rows, Side::kDown),
          layout.transposed != 0,
          false};
}

StoredMatrix scale_matrix(const nc_layout& layout, Extent matrix, int x, int y) {
  const Extent used = scale_extent(layout, matrix), stored = scale_shape(layout, matrix);
  const Extent block =
      spans_tensor(layout) ? used : exchanged(copies_of_scale(layout), layout.scale_transposed);
  return {x,
          y,
          axis_of(used.columns, stored.columns, block.columns, Side::kAcross),
          axis_of(used.rows, stored.rows, block.rows, Side::kDown),
          layout.scale_transposed != 0,
          true};
}

void draw(Canvas& canvas, const StoredMatrix& matrix) {
  draw_ticks(canvas, matrix);
  for (const Segment& down : matrix.down.segments) {
    canvas.open_line();
    for (const Segment& across : matrix.across.segments) {
      if (down.kind == Kind::kPadding || across.kind == Kind::kPadding) continue;
      if (down.kind == Kind::kGap || across.kind == Kind::kGap) {
        canvas.label("tick", cell_of(matrix, down, across), "\u2026");
      } else {
        draw_block(canvas, matrix, down, across);
      }
    }
    canvas.close_line();
  }
  draw_padding(canvas, matrix);
  canvas.box("frame", {matrix.x, matrix.y, matrix.across.length(), matrix.down.length()});
}

Extent copies_of_scale(const nc_layout& layout) {
  return {layout.block_rows / layout.scale_per_rows,
          layout.block_columns / layout.scale_per_columns};
}

std::string block_style(Extent block) {
  return "block" + std::to_string(block.rows % 2) + std::to_string(block.columns % 2);
}

std::string name_of(Extent place) {
  return std::to_string(place.rows) + "," + std::to_string(place.columns);
}

std::string times(int64_t rows, int64_t columns) {
  return std::to_string(rows) + " \u00d7 " + std::to_string(columns);
}

}  // namespace narrowcast::codegen
