#include "codegen/gathers.hpp"

#include "codegen/reasons.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

std::string text_of(int64_t rows, int64_t columns) {
  return std::to_string(rows) + "x" + std::to_string(columns);
}

// The rows of the matrix are cut: columns of what is stored transposed.
Carried data_of(const Plan& plan, nc_buffer buffer, const nc_layout& layout) {
  Carried data{};
  data.buffer = buffer;
  data.along_columns = layout.transposed;
  data.equal_rows = data.equal_columns = 1;
  data.reason = data.along_columns
                    ? "Stored transposed: each rank brings a run of every stored row."
                    : "Ranks bring stored rows, so what arrives can be the buffer itself.";
  if (plan.spans_tensor) data.reason += " Every rank has the scale, which spans the tensor.";
  return data;
}

std::string reason_of(const Carried& scales, const nc_layout& layout) {
  std::string reason = "A scale for each " + block_text(layout) + " block";
  if (scales.repeats) {
    reason +=
        ": one of the " + text_of(scales.equal_rows, scales.equal_columns) + " that are stored";
  }
  if (layout.scale_pad_rows * layout.scale_pad_columns > 1) {
    reason +=
        ", without the padding to " + text_of(layout.scale_pad_rows, layout.scale_pad_columns);
  }
  if (scales.along_columns) reason += "; stored transposed";
  return reason + ".";
}

Carried scales_of(nc_buffer buffer, const nc_layout& layout) {
  const Extent equal = exchanged(
      {layout.block_rows / layout.scale_per_rows, layout.block_columns / layout.scale_per_columns},
      layout.scale_transposed);
  Carried scales{};
  scales.buffer = buffer;
  scales.scales = true;
  scales.along_columns = layout.scale_transposed;
  scales.equal_rows = equal.rows;
  scales.equal_columns = equal.columns;
  scales.repeats = equal.rows * equal.columns > 1;
  scales.reason = reason_of(scales, layout);
  return scales;
}

}  // namespace

std::vector<GatherOfPhase> gathers_of(const Plan& plan) {
  const Carried rowwise = data_of(plan, NC_ROWWISE_DATA, plan.rowwise);
  if (plan.spans_tensor) return {{"always", {}, {rowwise}}};
  const Carried rowwise_scales = scales_of(NC_ROWWISE_SCALE, plan.rowwise);
  if (plan.columnwise_derived) return {{"always", {}, {rowwise, rowwise_scales}}};
  Carried columnwise = data_of(plan, NC_COLUMNWISE_DATA, plan.columnwise);
  Carried columnwise_scales = scales_of(NC_COLUMNWISE_SCALE, plan.columnwise);
  const std::vector<Carried> forward{rowwise, rowwise_scales};
  const std::vector<Carried> backward{columnwise, columnwise_scales};
  std::vector<Carried> both{rowwise, columnwise, rowwise_scales, columnwise_scales};
  for (Carried& carried : both) carried.reason.clear();  // said above it
  return {{"forward", {}, forward},
          {"backward", {}, backward},
          {"both", "Scales travel together, behind the data.", both}};
}

}  // namespace narrowcast::codegen
