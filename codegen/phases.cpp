#include "codegen/phases.hpp"

#include <algorithm>
#include <string>

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

// What a gather carries of a weight.
struct Payload {
  double bits_per_element;
  int64_t example_bytes;
};

// A scale a block: neither padding nor repetition travels, nor a scale that spans the tensor, which
// every rank has.
Payload payload_of(const nc_layout& layout, double bits_per_element, Extent matrix) {
  const Extent data = data_shape(layout, matrix);
  Payload payload{bits_per_element, data.rows * data.columns};
  if (spans_tensor(layout)) return payload;
  payload.example_bytes += ceil_div(matrix.rows, layout.block_rows) *
                           ceil_div(matrix.columns, layout.block_columns) * layout.scale_bytes;
  return payload;
}

constexpr const char* kForward = "forward";
constexpr const char* kBackward = "backward";
constexpr const char* kAgain = "a forward computed again in the backward (`recompute=True`)";
constexpr const char* kUnsharded = "kept unsharded (`reshard_after_forward=False`)";

Phase phase(const char* name, const char* gathers, const Payload& payload) {
  return {name, gathers, payload.bits_per_element, payload.example_bytes};
}

}  // namespace

std::vector<Phase> phases_of(const Plan& plan) {
  const Extent matrix{plan.example.rows, plan.example.columns};
  const Payload rowwise = payload_of(plan.rowwise, plan.wire_bits_per_element, matrix);
  if (plan.gather == Gather::kRowwise) {
    return {phase(kForward, "rowwise", rowwise),
            phase(kBackward, "rowwise; columnwise has the same values", rowwise),
            phase(kAgain, "rowwise, as any backward", rowwise),
            phase(kUnsharded, "rowwise in the forward, nothing in the backward", rowwise)};
  }
  // FSDP2 fixes a payload's size once, so the smaller of the two is filled up.
  const Payload columnwise = payload_of(plan.columnwise, plan.columnwise_wire_bits, matrix);
  const Payload either{std::max(rowwise.bits_per_element, columnwise.bits_per_element),
                       std::max(rowwise.example_bytes, columnwise.example_bytes)};
  const Payload both{rowwise.bits_per_element + columnwise.bits_per_element,
                     rowwise.example_bytes + columnwise.example_bytes};
  return {phase(kForward, "rowwise", either), phase(kBackward, "columnwise", either),
          phase(kAgain, "both, in the forward and in the backward", both),
          phase(kUnsharded, "both in the forward, nothing in the backward", both)};
}

}  // namespace narrowcast::codegen
