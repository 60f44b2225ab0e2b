#include "codegen/reasons.hpp"

namespace narrowcast::codegen {
namespace {

std::string one_scale(const nc_layout& layout) {
  return layout.block_rows == 0 ? "one scale for the tensor"
                                : "one scale for each " + block_text(layout) + " block";
}

// How the columnwise buffers hold the rowwise codes and scales, where the blocks are equal.
std::string stored_how(const Plan& plan) {
  const bool data = plan.columnwise.transposed != plan.rowwise.transposed;
  const bool scales = plan.columnwise.scale_transposed != plan.rowwise.scale_transposed;
  if (data && (scales || plan.spans_tensor)) return "stored transposed";
  if (data) return "the codes stored transposed";
  const bool laid_out_alike = plan.columnwise.scale_per_rows == plan.rowwise.scale_per_rows &&
                              plan.columnwise.scale_per_columns == plan.rowwise.scale_per_columns;
  if (scales) return "the scales stored transposed";
  return laid_out_alike ? "stored alike" : "the scales laid out along the columns";
}

std::string rowwise(const Plan& plan) {
  if (!plan.columnwise_derived) return "Rowwise: " + one_scale(plan.rowwise) + ".";
  std::string sentence = one_scale(plan.rowwise);
  sentence.front() = 'O';
  return sentence + ".";
}

std::string columnwise(const Plan& plan) {
  if (!plan.columnwise_derived) {
    return "Columnwise: " + one_scale(plan.columnwise) +
           "; other groups than rowwise, so quantized again.";
  }
  return std::string("Columnwise: the same ") +
         (plan.spans_tensor ? "scale, so the same codes, "
                            : "blocks, so the same codes and scales, ") +
         stored_how(plan) + ".";
}

std::string first_pass(const Plan& plan) {
  if (plan.optimizer_passes == 1) return {};
  return std::string("The ") + (plan.two_levels ? "tensor scale" : "scale") +
         " comes from the amax of the whole tensor, so a pass that finds it goes before this one.";
}

std::string gather(const Plan& plan) {
  if (plan.columnwise_derived) {
    return "Both usages have the same blocks, so columnwise is a rearrangement of the rowwise "
           "bytes: every gather carries "
           "rowwise, and columnwise is derived after arrival.";
  }
  return "The usages have different blocks, so neither can be made from the other: the forward "
         "gathers rowwise, the backward "
         "columnwise. A gather that serves both passes carries both.";
}

std::string row_step(const Plan& plan) {
  if (plan.row_step == 1) return "A cut between any two rows divides neither a block nor a byte.";
  return "A cut elsewhere than at a multiple of " + std::to_string(plan.row_step) +
         " rows divides a block or a byte.";
}

std::string tile_rows(const Plan& plan) {
  const std::string rows = std::to_string(plan.tile_rows);
  const bool tall =
      plan.tile_rows == plan.rowwise.block_rows || plan.tile_rows == plan.columnwise.block_rows;
  if (tall) return "A tile of " + rows + " rows holds whole blocks.";
  const bool transposed = plan.rowwise.transposed || plan.columnwise.transposed;
  return "A tile of " + rows + " rows " +
         (transposed ? "stores transposed data in runs of at least 32 bytes."
                     : "is the smallest that fills the GPU's warps.");
}

}  // namespace

std::string block_text(const nc_layout& layout) {
  if (layout.block_rows == 0) return "tensor";
  return std::to_string(layout.block_rows) + "x" + std::to_string(layout.block_columns);
}

Reasons reasons_of(const Plan& plan) {
  Reasons reasons;
  reasons.rowwise = rowwise(plan);
  reasons.columnwise = columnwise(plan);
  reasons.first_pass = first_pass(plan);
  reasons.gather = gather(plan);
  reasons.row_step = row_step(plan);
  reasons.tile_rows = tile_rows(plan);
  return reasons;
}

}  // namespace narrowcast::codegen
