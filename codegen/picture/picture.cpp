#include "codegen/picture/picture.hpp"

#include <algorithm>

#include "codegen/picture/stored_matrix.hpp"

namespace narrowcast::codegen {
namespace {

constexpr int kWidth = 880, kMargin = 24;
constexpr int kDataX = 72, kScaleX = 484;  // of the corners of matrices; ticks stand to their left
constexpr int kLine = 17;                  // from one line of text to the next
constexpr int kShownBytes = 6;             // whole elements in every packing
constexpr int kBit = 14;

struct Usage {
  std::string name;
  const nc_layout& layout;
  const BufferShape &data, &scale;
};

std::string data_caption(const nc_layout& layout) {
  const std::string block =
      spans_tensor(layout) ? "One block, the whole matrix."
                           : "Blocks of " + times(layout.block_rows, layout.block_columns) + ".";
  return block + (layout.transposed ? " Transposed." : "");
}

std::string scale_caption(const nc_layout& layout) {
  if (spans_tensor(layout)) return "One scale for the whole matrix.";
  const Extent copies = copies_of_scale(layout);
  const std::string per = times(layout.scale_per_rows, layout.scale_per_columns);
  const std::string entries = copies == Extent{1, 1}
                                  ? "One entry a block."
                                  : "An entry for each " + per + ", so " +
                                        std::to_string(copies.rows * copies.columns) + " a block.";
  return entries + (layout.scale_transposed ? " Transposed." : "");
}

std::string sides(const std::string& what, bool exchange) {
  return what + (exchange ? ": \u2192 along matrix rows, \u2193 along matrix columns"
                          : ": \u2192 along matrix columns, \u2193 along matrix rows");
}

int draw_buffers(Canvas& canvas, const Usage& usage, Extent matrix, int y) {
  const auto head = [&](int x, const std::string& buffer, const BufferShape& shape,
                        const std::string& caption, const std::string& axes) {
    canvas.text("name", x, y, usage.name + buffer + "  " + shape.type + " " + shape.shape);
    canvas.text("", x, y + kLine, caption);
    canvas.text("tick", x, y + 2 * kLine, axes);
  };
  head(kDataX, "_data", usage.data, data_caption(usage.layout),
       sides("elements", usage.layout.transposed));
  head(kScaleX, "_scale_inv", usage.scale, scale_caption(usage.layout),
       sides("entries", usage.layout.scale_transposed));
  const int corner = y + 4 * kLine;
  const StoredMatrix data = data_matrix(usage.layout, matrix, kDataX, corner),
                     scale = scale_matrix(usage.layout, matrix, kScaleX, corner);
  draw(canvas, data);
  draw(canvas, scale);
  return corner + std::max(data.down.length(), scale.down.length());
}

// ---- bytes ----

// The bytes that begin a stored row, each element over its bits.
int draw_row(Canvas& canvas, const Plan& plan, const Usage& usage, int64_t stored_row, int y) {
  constexpr int kElement = 22, kByte = 18;
  const nc_layout& layout = usage.layout;
  const Extent matrix{plan.example.rows, plan.example.columns};
  canvas.open_line();
  canvas.text("end tick", kDataX - 6, y + kElement - 7, "row " + std::to_string(stored_row));
  for (int i = 0; i < kShownBytes * 8 / layout.element_bits; ++i) {
    const Extent element = exchanged({stored_row, i}, layout.transposed);
    const Extent block = spans_tensor(layout) ? Extent{0, 0}
                                              : Extent{element.rows / layout.block_rows,
                                                       element.columns / layout.block_columns};
    const int x = kDataX + i * layout.element_bits * kBit;
    const Area code{x, y, plan.code_bits * kBit, kElement};
    canvas.cell(block_style(block), code, "", name_of(element));
    const int unused = layout.element_bits - plan.code_bits;
    if (unused > 0)
      canvas.box("padding", {x + code.width, y, unused * kBit, kElement}, "zero bits");
  }
  canvas.text("tick", kDataX + kShownBytes * 8 * kBit + 8, y + kElement - 7, "\u2026");
  canvas.close_line();
  canvas.open_line();
  for (int i = 0; i < kShownBytes; ++i) {
    const Area byte{kDataX + i * 8 * kBit, y + kElement, 8 * kBit, kByte};
    canvas.cell("byte", byte, "tick",
                "byte " + std::to_string(stored_row * data_row_bytes(layout, matrix) + i));
  }
  canvas.close_line();
  return y + kElement + kByte;
}

int draw_bytes(Canvas& canvas, const Plan& plan, const Usage& usage, int y) {
  const Extent matrix{plan.example.rows, plan.example.columns};
  const int64_t elements = data_extent(usage.layout, matrix).columns;
  canvas.text("", kDataX, y,
              "The first bytes of two stored rows, which have " + std::to_string(elements) +
                  " elements in " + std::to_string(data_row_bytes(usage.layout, matrix)) +
                  " bytes each.");
  canvas.text(
      "tick", kDataX, y + kLine,
      "A cell is an element of the matrix, named row,column. The lowest bit of a byte is on "
      "its left.");
  const int first = draw_row(canvas, plan, usage, 0, y + kLine + 10);
  return draw_row(canvas, plan, usage, 1, first + 10);
}

// ---- the whole ----

int draw_usage(Canvas& canvas, const Plan& plan, const Usage& usage, int y) {
  canvas.open(usage.name);
  canvas.box("rule", {kMargin, y, kWidth - 2 * kMargin, 1});
  const Extent matrix{plan.example.rows, plan.example.columns};
  const int buffers = draw_buffers(canvas, usage, matrix, y + 28);
  const int bottom = draw_bytes(canvas, plan, usage, buffers + 30);
  canvas.close();
  return bottom + 22;
}

// Zeros in the example's scale matrices, or beside the codes in their bytes.
bool has_padding(const Plan& plan) {
  const Extent matrix{plan.example.rows, plan.example.columns};
  return plan.code_bits < plan.rowwise.element_bits ||
         scale_extent(plan.rowwise, matrix) != scale_shape(plan.rowwise, matrix) ||
         scale_extent(plan.columnwise, matrix) != scale_shape(plan.columnwise, matrix);
}

int draw_head(Canvas& canvas, const Plan& plan, int y) {
  canvas.text(
      "title", kMargin, y,
      plan.name + ": " + times(plan.example.rows, plan.example.columns) + " elements in memory");
  const Area block{kMargin, y + 16, 42, 20}, padding{kScaleX, y + 16, 42, 20};
  const Extent second{0, plan.spans_tensor ? 0 : 1};
  canvas.cell(block_style(second), block, "", name_of(second));
  canvas.text("", block.x + 52, block.y + 14,
              "a block, by its row and column among the blocks; its scale");
  if (has_padding(plan)) {
    canvas.box("padding", padding);
    canvas.text("", padding.x + 52, padding.y + 14, "padding, zero");
  }
  return padding.y + padding.height + 16;
}

std::string amax_caption(const Plan& plan) {
  const std::string what = "The largest magnitude of the whole tensor";
  if (plan.two_levels) return what + ": the tensor scale, a factor of all values of both usages.";
  return what + (plan.amax == Amax::kDelayed ? "; the scale is made from those of earlier steps."
                                             : ", from which the scale of both usages is made.");
}

// The value that stands beside the buffers of both usages.
int draw_amax(Canvas& canvas, const Plan& plan, int y) {
  if (!plan.tensor_amax) return y;
  canvas.box("rule", {kMargin, y, kWidth - 2 * kMargin, 1});
  const Area amax{kDataX, y + 38, 42, 22};
  canvas.text("name", kDataX, y + 28, "amax  float32 (1,)");
  canvas.cell("block00", amax, "", "A");
  canvas.text("", amax.x + 52, amax.y + 15, amax_caption(plan));
  return amax.y + amax.height + 22;
}

}  // namespace

Picture picture_of(const Plan& plan) {
  Canvas canvas;
  int y = draw_head(canvas, plan, kMargin + 12);
  const auto& buffers = plan.example.buffers;
  y = draw_usage(canvas, plan,
                 {"rowwise", plan.rowwise, buffers[NC_ROWWISE_DATA], buffers[NC_ROWWISE_SCALE]}, y);
  y = draw_usage(
      canvas, plan,
      {"columnwise", plan.columnwise, buffers[NC_COLUMNWISE_DATA], buffers[NC_COLUMNWISE_SCALE]},
      y);
  y = draw_amax(canvas, plan, y);
  return {kWidth, y, canvas.elements()};
}

}  // namespace narrowcast::codegen
