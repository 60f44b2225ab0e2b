#include "codegen/rules.hpp"

#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

OperationRule exact(std::string text) { return {true, std::move(text)}; }
OperationRule error(std::string text) { return {false, std::move(text)}; }

std::string steps(const Plan& plan) {
  if (plan.row_step == 1 && plan.column_step == 1) return "anywhere";
  return "at multiples of " + std::to_string(plan.row_step) + " rows, " +
         std::to_string(plan.column_step) + " columns";
}

OperationRule transposition(const Plan& plan) {
  if (!mirrored(plan.rowwise, plan.columnwise)) {
    return error(
        "its columnwise bytes are not stored as the rowwise bytes of the transposed matrix");
  }
  if (!plan.columnwise_derived) {
    return error(
        "its columnwise bytes are quantized in blocks of their own, so the transposed matrix "
        "would have other values");
  }
  return exact("the usages change places, over the same buffers");
}

OperationRule join(const Plan& plan) {
  return exact("joints " + steps(plan) +
               (plan.tensor_amax ? ", and pieces of one tensor-wide scale" : ""));
}

OperationRule write_part(const Plan& plan) {
  if (plan.tensor_amax) {
    return error(
        "without a master, for a scale spans the whole tensor; with one: exact, through it");
  }
  return exact("the bytes of the value quantized alone, which has blocks of its own");
}

// A stored row of either usage is whole bytes.
OperationRule make(const Plan& plan) {
  const int64_t group = elements_per_group(plan.rowwise);
  if (group == 1) return exact("any shape");
  const std::string multiples = " in multiples of " + std::to_string(group);
  const auto held = [&](const nc_layout& layout) {
    return (layout.transposed ? "rows" : "columns") + multiples;
  };
  const std::string rowwise = held(plan.rowwise), columnwise = held(plan.columnwise);
  return exact(rowwise == columnwise ? rowwise : rowwise + " and " + columnwise);
}

}  // namespace

std::array<OperationRule, NC_OPERATION_COUNT> rules_of(const Plan& plan) {
  return {exact("cuts " + steps(plan)), transposition(plan), join(plan), write_part(plan),
          make(plan)};
}

}  // namespace narrowcast::codegen
