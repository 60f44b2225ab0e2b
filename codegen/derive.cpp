#include "codegen/derive.hpp"

#include <algorithm>
#include <numeric>

#include "codegen/origin.hpp"
#include "codegen/phases.hpp"
#include "codegen/reasons.hpp"
#include "codegen/type_names.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

// The GPU writes a transposed copy in runs down the columns of its tile; from 32 bytes on they run
// at full speed.
constexpr int64_t kFullSpeedRunBytes = 32;
constexpr int64_t kSmallestTileRows = 32;

int32_t bits_of(Element element) {
  switch (element) {
    case Element::kE2M1:
      return 4;
    case Element::kE2M3:
    case Element::kE3M2:
      return 6;
    case Element::kE4M3:
    case Element::kE5M2:
    case Element::kInt8:
      return 8;
  }
  return 0;
}

int32_t bytes_of(ScaleType scale) { return scale == ScaleType::kF32 ? 4 : 1; }

Layout layout_of(const Format& format, const Usage& usage) {
  const bool dense = format.packing.value == Packing::kDense;
  Layout layout{};
  layout.block_rows = usage.block.value.rows;
  layout.block_columns = usage.block.value.columns;
  layout.transposed = usage.transposed.value;
  layout.scale_transposed = usage.scale_transposed.value;
  layout.element_bits = dense ? bits_of(format.element.value) : 8;
  layout.scale_bytes = bytes_of(format.scale.value);
  if (usage.block.value.spans_tensor()) return layout;
  layout.scale_per_rows = usage.scale_per.value.rows;
  layout.scale_per_columns = usage.scale_per.value.columns;
  layout.scale_pad_rows = usage.scale_pad.value.rows;
  layout.scale_pad_columns = usage.scale_pad.value.columns;
  return layout;
}

// ---- cuts ----

// Transposed data are cut inside their stored rows, where a byte may hold several rows of the
// matrix.
nc_cut data_cut(const Layout& layout, nc_buffer buffer, nc_gather gather) {
  const int64_t rows = layout.transposed ? elements_per_group(layout) : 1;
  const int64_t entries = layout.transposed ? rows * layout.element_bits / 8 : 1;
  return {buffer, layout.transposed, rows, entries, 1, {1, 1}, gather, 0};
}

nc_cut scale_cut(const Layout& layout, nc_buffer buffer, nc_gather gather) {
  // The one scale of a tensor is not cut, and travels beside the data, not in them.
  if (spans_tensor(layout)) return {buffer, -1, 1, 1, 1, {1, 1}, NC_GATHER_NEVER, 0};
  const int64_t pad = layout.scale_transposed ? layout.scale_pad_columns : layout.scale_pad_rows;
  const Extent repeat = exchanged(
      {layout.block_rows / layout.scale_per_rows, layout.block_columns / layout.scale_per_columns},
      layout.scale_transposed);
  return {buffer,
          layout.scale_transposed,
          layout.scale_per_rows,
          1,
          pad,
          {repeat.rows, repeat.columns},
          gather,
          0};
}

std::array<nc_cut, NC_BUFFER_COUNT> cuts_of(const Plan& plan) {
  const bool by_pass = plan.gather == Gather::kByPass;
  const nc_gather rowwise = by_pass ? NC_GATHER_FORWARD : NC_GATHER_ALWAYS;
  const nc_gather columnwise = by_pass ? NC_GATHER_BACKWARD : NC_GATHER_NEVER;
  return {data_cut(plan.rowwise, NC_ROWWISE_DATA, rowwise),
          scale_cut(plan.rowwise, NC_ROWWISE_SCALE, rowwise),
          data_cut(plan.columnwise, NC_COLUMNWISE_DATA, columnwise),
          scale_cut(plan.columnwise, NC_COLUMNWISE_SCALE, columnwise)};
}

// ---- sizes ----

std::string text_of(Extent shape) {
  return "(" + std::to_string(shape.rows) + ", " + std::to_string(shape.columns) + ")";
}

double bits_per_element(const Layout& layout, int64_t elements_per_scale) {
  if (spans_tensor(layout)) return layout.element_bits;
  return layout.element_bits + 8.0 * layout.scale_bytes / static_cast<double>(elements_per_scale);
}

BufferShape data_buffer(const Layout& layout, Extent matrix) {
  const Extent shape = data_shape(layout, matrix);
  return {"uint8", text_of(shape), shape.rows * shape.columns};
}

// A scale that spans the tensor is a tensor of one dimension.
BufferShape scale_buffer(const Layout& layout, Extent matrix) {
  const Extent shape = scale_shape(layout, matrix);
  return {layout.scale_bytes == 4 ? "float32" : "uint8",
          spans_tensor(layout) ? "(1,)" : text_of(shape),
          shape.rows * shape.columns * layout.scale_bytes};
}

Example example_of(const Plan& plan) {
  constexpr Extent kMatrix{300, 520};
  return {kMatrix.rows,
          kMatrix.columns,
          {data_buffer(plan.rowwise, kMatrix), scale_buffer(plan.rowwise, kMatrix),
           data_buffer(plan.columnwise, kMatrix), scale_buffer(plan.columnwise, kMatrix)}};
}

int64_t tile_rows(const Plan& plan) {
  int64_t rows = kSmallestTileRows;
  for (const Layout& layout : {plan.rowwise, plan.columnwise}) {
    rows = std::max(rows, layout.block_rows);
    while (layout.transposed && rows * layout.element_bits / 8 < kFullSpeedRunBytes) rows *= 2;
  }
  return rows;
}

std::string origin_of(const Format& format) {
  const std::string& name = format.name.value;
  return format.in_tree ? made_from_tree(name) + "; edit that and run `make regenerate`."
                        : "Made from " + name + ".toml; edit that and run `narrowcast build`.";
}

}  // namespace

Plan derive(const Format& format) {
  Plan plan{};
  plan.name = format.name.value;
  plan.summary = format.summary.value;
  plan.reference = format.reference.value;
  plan.origin = origin_of(format);
  plan.element = format.element.value;
  plan.packing = format.packing.value;
  plan.scale = format.scale.value;
  plan.tensor_scale = format.tensor_scale.value;
  plan.rule = format.rule.value;
  plan.amax = format.amax.value;

  plan.code_bits = bits_of(format.element.value);
  plan.rowwise = layout_of(format, format.rowwise);
  plan.columnwise = layout_of(format, format.columnwise);
  plan.two_levels = plan.tensor_scale != TensorScale::kNone;
  plan.spans_tensor = spans_tensor(plan.rowwise);
  plan.tensor_amax = plan.two_levels || plan.spans_tensor;
  plan.delayed_amax = plan.amax == Amax::kDelayed;
  plan.types = type_names_of(plan);

  // Equal blocks have equal amaxes, so equal scales and codes: the second usage holds nothing new.
  plan.columnwise_derived = format.rowwise.block.value == format.columnwise.block.value;
  plan.gather = plan.columnwise_derived ? Gather::kRowwise : Gather::kByPass;
  plan.cuts = cuts_of(plan);

  const Extent rowwise_step = cut_step(plan.rowwise), columnwise_step = cut_step(plan.columnwise);
  plan.row_step = std::lcm(rowwise_step.rows, columnwise_step.rows);
  plan.shard_row_step = plan.columnwise_derived ? rowwise_step.rows : plan.row_step;
  plan.column_step = std::lcm(rowwise_step.columns, columnwise_step.columns);

  const Layout& layout = plan.rowwise;
  plan.bits_per_element =
      bits_per_element(layout, layout.scale_per_rows * layout.scale_per_columns);
  plan.wire_bits_per_element = bits_per_element(layout, layout.block_rows * layout.block_columns);

  // A delayed scale comes from earlier steps, so the cast need not wait for this step's amax.
  plan.optimizer_passes = plan.tensor_amax && !plan.delayed_amax ? 2 : 1;
  plan.tile_rows = tile_rows(plan);
  plan.example = example_of(plan);
  plan.phases = phases_of(plan);
  plan.reasons = reasons_of(plan);
  return plan;
}

}  // namespace narrowcast::codegen
