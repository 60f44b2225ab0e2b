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

OperationRule write_part(const Plan& plan) {
  if (plan.tensor_amax) {
    return error(
        "without a master, for a scale spans the whole tensor; with one: exact, through it");
  }
  return exact("the bytes of the value quantized alone, which has blocks of its own");
}

}  // namespace

std::array<OperationRule, NC_OPERATION_COUNT> rules_of(const Plan& plan) {
  return {exact("cuts " + steps(plan)), transposition(plan), write_part(plan)};
}

}  // namespace narrowcast::codegen
