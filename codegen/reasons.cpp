#include "codegen/reasons.hpp"

#include "runtime/geometry/geometry.hpp"

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
  if (plan.delayed_amax) {
    return "The scale comes from the amaxes of earlier steps, so no pass needs to go before this "
           "one.";
  }
  if (plan.optimizer_passes == 1) return {};
  return std::string("The ") + (plan.two_levels ? "tensor scale" : "scale") +
         " comes from the amax of the whole tensor, so a pass that finds it goes before this one.";
}

std::string gather(const Plan& plan) {
  if (plan.columnwise_derived) {
    return "Both usages have the same blocks, so columnwise is a rearrangement of the rowwise "
           "bytes, with the same values: every gather carries rowwise, and products of both passes "
           "decode it.";
  }
  return "The usages have different blocks, so neither can be made from the other: the forward "
         "gathers rowwise, the backward "
         "columnwise. A gather that serves both passes carries both.";
}

// Why a usage cannot be cut between any two rows: a clause for each reason, behind those of others.
std::string uncut(const std::string& usage, const nc_layout& layout) {
  std::string clauses;
  if (layout.block_rows > 1) {
    clauses += ", a " + usage + " block has " + std::to_string(layout.block_rows) + " rows";
  }
  const int64_t together = layout.transposed ? elements_per_group(layout) : 1;
  if (together > 1) {
    const int64_t bytes = together * layout.element_bits / 8;
    clauses += ", " + usage + " data keep " + std::to_string(together) + " rows in " +
               (bytes == 1 ? "a byte" : std::to_string(bytes) + " bytes");
  }
  return clauses;
}

std::string step_sentence(int64_t step, const std::string& clauses) {
  if (step == 1) return "A cut between any two rows divides neither a block nor a byte.";
  return "Cuts at multiples of " + std::to_string(step) +
         " rows divide nothing: " + clauses.substr(2) + ".";
}

std::string row_step(const Plan& plan) {
  return step_sentence(plan.row_step,
                       uncut("rowwise", plan.rowwise) + uncut("columnwise", plan.columnwise));
}

std::string shard_row_step(const Plan& plan) {
  if (!plan.columnwise_derived) return "A shard keeps both usages, so both count.";
  return "A shard keeps the rowwise bytes alone. " +
         step_sentence(plan.shard_row_step, uncut("rowwise", plan.rowwise));
}

std::string optimizer_passes(const Plan& plan) {
  if (plan.optimizer_passes == 2) {
    return "The first pass updates the masters and finds the tensor's amax, the second casts.";
  }
  return plan.tensor_amax ? "The scale comes from earlier steps, so update and cast are one pass."
                          : "No scale spans more than a block, so update and cast are one pass.";
}

std::string amax(const Plan& plan) {
  return plan.tensor_amax ? "The amax is reduced over all shards in each step (4 bytes); no gather "
                            "carries it."
                          : "No step reduces an amax.";
}

std::string packing(const Plan& plan) {
  const std::string bits = std::to_string(plan.code_bits);
  if (plan.code_bits < plan.rowwise.element_bits) {
    return "A byte holds one element in its low " + bits + " bits; the others are zero.";
  }
  const int64_t elements = elements_per_group(plan.rowwise);
  if (elements == 1) return "A byte holds one element.";
  const int64_t bytes = elements * plan.code_bits / 8;
  const std::string count = std::to_string(elements);
  return (bytes == 1 ? "A byte holds " : std::to_string(bytes) + " bytes hold ") + count +
         " elements of a stored row, low bits first. A stored row has a multiple of " + count +
         " elements.";
}

std::string decoding(const Plan& plan) {
  return plan.two_levels
             ? "`element * (scale * amax * (1 / range))`, with the largest element times "
               "the largest scale as the range, all in fp32"
             : "`element * scale`, in fp32";
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

std::string strip_tiles(const Plan& plan) {
  if (plan.strip_tiles == 1) return "A thread block of the GPU has one tile.";
  const int64_t rows = plan.strip_tiles * plan.tile_rows;
  return "Where the GPU casts many tensors, or parts of some, a thread block has " +
         std::to_string(plan.strip_tiles) +
         " tiles, one below the other, so that transposed data is stored in runs of " +
         std::to_string(rows * plan.columnwise.element_bits / 8) + " bytes.";
}

// What a cut of the flattened matrix divides in a usage.
std::string divided(const nc_layout& layout) {
  const std::string block = block_text(layout) + " block";
  return layout.block_rows == 1 ? "a " + block : "up to a row of " + block + "s";
}

std::string collect(const Plan& plan) {
  if (plan.spans_tensor)
    return "Before a cast of flat shards: their cuts divide no block, for one spans the tensor.";
  return "Before a cast of flat shards: the amaxes of their own elements, which owners tell each "
         "other where a cut divides a block; the cast then finds those of all.";
}

std::string flat_shards(const Plan& plan) {
  std::string text;
  if (!plan.spans_tensor) {
    text = "A cut anywhere divides " + divided(plan.rowwise) +
           (plan.columnwise_derived ? "" : " and " + divided(plan.columnwise)) +
           ", whose owners reduce the amaxes of those alone (4 bytes each). ";
  }
  if (plan.delayed_amax) {
    text += "The amax of the tensor is reduced after the cast, for the history. ";
  } else if (plan.tensor_amax) {
    text += "The amax of the tensor is reduced before the cast, in the same reduction. ";
  }
  if (elements_per_group(plan.rowwise) > 1)
    text += "Owners of one byte tell each other its values there too, so both write all of it. ";
  return text + (plan.columnwise_derived
                     ? "Shards write rowwise bytes; columnwise ones follow when all have come."
                     : "Shards write their elements of both usages.");
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
  reasons.shard_row_step = shard_row_step(plan);
  reasons.optimizer_passes = optimizer_passes(plan);
  reasons.packing = packing(plan);
  reasons.decoding = decoding(plan);
  reasons.amax = amax(plan);
  reasons.tile_rows = tile_rows(plan);
  reasons.strip_tiles = strip_tiles(plan);
  reasons.collect = collect(plan);
  reasons.flat_shards = flat_shards(plan);
  return reasons;
}

}  // namespace narrowcast::codegen
