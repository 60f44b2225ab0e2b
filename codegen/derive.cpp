#include "codegen/derive.hpp"

#include <algorithm>
#include <numeric>

#include "codegen/gathers.hpp"
#include "codegen/origin.hpp"
#include "codegen/reasons.hpp"
#include "codegen/rules.hpp"
#include "codegen/type_names.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

// The GPU writes a transposed copy in runs down the columns of its tile; from 32 bytes on they run
// at full speed.
constexpr int64_t kFullSpeedRunBytes = 32;
constexpr int64_t kSmallestTileRows = 32;
// Elements of fewer than 8 bits leave the GPU more to do for each byte that it moves; there what is
// written along columns pays in whole lines of its cache alone, with all scales of such a run.
constexpr int64_t kLineBytes = 128;
// Of the shared memory of a thread block, so that several are at work on a multiprocessor.
constexpr int64_t kStripBytes = 36'864;

Layout layout_of(const Format& format, const Usage& usage) {
  const bool dense = format.packing.value == Packing::kDense;
  Layout layout{};
  layout.block_rows = usage.block.value.rows;
  layout.block_columns = usage.block.value.columns;
  layout.transposed = usage.transposed.value;
  layout.scale_transposed = usage.scale_transposed.value;
  layout.element_bits = dense ? row_of(format.element.value).bits : 8;
  layout.scale_bytes = row_of(format.scale.value).bytes;
  if (usage.block.value.spans_tensor()) return layout;
  layout.scale_per_rows = usage.scale_per.value.rows;
  layout.scale_per_columns = usage.scale_per.value.columns;
  layout.scale_pad_rows = usage.scale_pad.value.rows;
  layout.scale_pad_columns = usage.scale_pad.value.columns;
  return layout;
}

double bits_per_element(const Layout& layout, int64_t elements_per_scale) {
  if (spans_tensor(layout)) return layout.element_bits;
  return layout.element_bits + 8.0 * layout.scale_bytes / static_cast<double>(elements_per_scale);
}

// A gather carries a scale a block: neither padding nor repetition, nor a scale that spans the
// tensor, which every rank has.
int64_t wire_bytes(const Layout& layout, Extent matrix) {
  const int64_t data = data_row_bytes(layout, matrix) * data_extent(layout, matrix).rows;
  if (spans_tensor(layout)) return data;
  return data + ceil_div(matrix.rows, layout.block_rows) *
                    ceil_div(matrix.columns, layout.block_columns) * layout.scale_bytes;
}

ExampleUsage example_of(const Plan& plan, const Layout& layout, Extent matrix) {
  const Extent data = data_shape(layout, matrix), scale = scale_shape(layout, matrix);
  return {{"uint8", data, data.rows * data.columns},
          {plan.scale_dtype, scale, scale.rows * scale.columns * layout.scale_bytes},
          wire_bytes(layout, matrix)};
}

Example example_of(const Plan& plan) {
  constexpr Extent kMatrix{300, 520};
  return {kMatrix, example_of(plan, plan.rowwise, kMatrix),
          example_of(plan, plan.columnwise, kMatrix)};
}

int64_t tile_rows(const Plan& plan) {
  int64_t rows = kSmallestTileRows;
  for (const Layout& layout : {plan.rowwise, plan.columnwise}) {
    rows = std::max(rows, layout.block_rows);
    while (layout.transposed && rows * layout.element_bits / 8 < kFullSpeedRunBytes) rows *= 2;
  }
  return rows;
}

// What waits in shared memory of `rows` rows (runtime/tile/cuda_strip.cuh), about.
int64_t staged_bytes(const Layout& layout, int64_t rows) {
  constexpr int64_t kTileColumns = 128;
  const int64_t codes = layout.transposed ? rows * kTileColumns * layout.element_bits / 8 : 0;
  if (spans_tensor(layout)) return codes;
  return codes +
         rows / layout.block_rows * (kTileColumns / layout.block_columns) * layout.scale_bytes;
}

int64_t strip_tiles(const Plan& plan) {
  int64_t tiles = 1;
  const auto staged = [&](int64_t rows) {
    return staged_bytes(plan.rowwise, rows) + staged_bytes(plan.columnwise, rows);
  };
  for (const Layout& layout : {plan.rowwise, plan.columnwise}) {
    const auto run = [&] { return tiles * plan.tile_rows * layout.element_bits / 8; };
    if (!layout.transposed || layout.element_bits == 8) continue;
    while (run() < kLineBytes && staged(2 * tiles * plan.tile_rows) <= kStripBytes) tiles *= 2;
  }
  return tiles;
}

// As runtime/numeric/scale_rule.hpp has it: the largest element times the largest scale.
float tensor_range(const Plan& plan) {
  if (!plan.two_levels) return 0;
  return type_of(plan.element, plan.scale).max * E4M3::kMax;
}

// Those of the element, its leading one among them, and those of its block's scale.
int32_t significant_bits(const Plan& plan) {
  const int32_t element = type_of(plan.element, plan.scale).mantissa_bits + 1;
  const bool power_of_two = row_of(plan.scale).power_of_two || plan.rule == ScaleRule::kRceil;
  if (plan.spans_tensor || power_of_two) return element;
  const bool is_float = plan.scale == ScaleType::kF32;
  return element + (is_float ? 23 : E4M3::kMantissaBits) + 1;
}

// A name that nothing else has, whatever the format is called: a function of the library, a keyword
// of C++, a macro of a system's headers. cmake/Format.cmake gives it to the sources of a plugin.
std::string namespace_of(const Format& format) {
  return (format.kind.value == Kind::kState ? "state_" : "format_") + format.name.value;
}

}  // namespace

Plan derive(const Format& format) {
  Plan plan{};
  plan.name = format.name.value;
  plan.kind = format.kind.value;
  plan.name_space = namespace_of(format);
  plan.summary = format.summary.value;
  plan.reference = format.reference.value;
  plan.origin = origin_outside(plan.name);
  if (plan.kind == Kind::kState) {
    const State& state = format.state;
    plan.state = {state.block.value, {state.signed_root.value, state.nonnegative_root.value}};
    return plan;
  }
  plan.element = format.element.value;
  plan.packing = format.packing.value;
  plan.scale = format.scale.value;
  plan.tensor_scale = format.tensor_scale.value;
  plan.rule = format.rule.value;
  plan.amax = format.amax.value;

  plan.code_bits = row_of(plan.element).bits;
  plan.scale_dtype = row_of(plan.scale).dtype;
  plan.rowwise = layout_of(format, format.rowwise);
  plan.columnwise = layout_of(format, format.columnwise);
  plan.two_levels = plan.tensor_scale != TensorScale::kNone;
  plan.spans_tensor = spans_tensor(plan.rowwise);
  plan.tensor_amax = plan.two_levels || plan.spans_tensor;
  plan.delayed_amax = plan.amax == Amax::kDelayed;
  plan.types = type_names_of(plan);
  plan.tensor_range = tensor_range(plan);
  plan.significant_bits = significant_bits(plan);

  // Equal blocks have equal amaxes, so equal scales and codes: the second usage holds nothing new.
  plan.columnwise_derived = format.rowwise.block.value == format.columnwise.block.value;
  plan.gather = plan.columnwise_derived ? Gather::kRowwise : Gather::kByPass;

  const Extent rowwise_step = cut_step(plan.rowwise), columnwise_step = cut_step(plan.columnwise);
  plan.row_step = std::lcm(rowwise_step.rows, columnwise_step.rows);
  plan.shard_row_step = plan.columnwise_derived ? rowwise_step.rows : plan.row_step;
  plan.column_step = std::lcm(rowwise_step.columns, columnwise_step.columns);

  const auto stored_bits = [](const Layout& usage) {
    return bits_per_element(usage, usage.scale_per_rows * usage.scale_per_columns);
  };
  const auto wire_bits = [](const Layout& usage) {
    return bits_per_element(usage, usage.block_rows * usage.block_columns);
  };
  plan.bits_per_element = stored_bits(plan.rowwise);
  plan.columnwise_bits = stored_bits(plan.columnwise);
  plan.wire_bits_per_element = wire_bits(plan.rowwise);
  plan.columnwise_wire_bits = wire_bits(plan.columnwise);

  // A delayed scale comes from earlier steps, so the cast need not wait for this step's amax.
  plan.optimizer_passes = plan.tensor_amax && !plan.delayed_amax ? 2 : 1;
  plan.tile_rows = tile_rows(plan);
  plan.strip_tiles = strip_tiles(plan);
  plan.example = example_of(plan);
  plan.reasons = reasons_of(plan);
  plan.gathers = gathers_of(plan);
  plan.rules = rules_of(plan);
  return plan;
}

}  // namespace narrowcast::codegen
