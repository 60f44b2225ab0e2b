// page.md: the format for a human reader.
#include "codegen/accuracy.hpp"
#include "codegen/emit/emit.hpp"
#include "codegen/page_text.hpp"
#include "codegen/reasons.hpp"
#include "runtime/products/kinds.hpp"

namespace narrowcast::codegen {
namespace {

// Rows of the table: of each usage, where they differ.
std::string bits_rows(const Plan& plan) {
  const auto row = [](const std::string& what, double bits) {
    return "| bits an element" + what + " | " + number_text(bits) + " |";
  };
  if (plan.columnwise_bits == plan.bits_per_element &&
      plan.columnwise_wire_bits == plan.wire_bits_per_element)
    return row(", one usage as stored", plan.bits_per_element) + "\n" +
           row(" on the wire", plan.wire_bits_per_element);
  return row(", rowwise as stored", plan.bits_per_element) + "\n" +
         row(", rowwise on the wire", plan.wire_bits_per_element) + "\n" +
         row(", columnwise as stored", plan.columnwise_bits) + "\n" +
         row(", columnwise on the wire", plan.columnwise_wire_bits);
}

std::string filled_text(const Plan& plan) {
  const bool differ = plan.columnwise_wire_bits != plan.wire_bits_per_element;
  if (plan.gather == Gather::kRowwise || !differ) return "";
  return " FSDP2 fixes the size of a payload once for both passes: that of the smaller is filled "
         "up.";
}

std::string facts(const Plan& plan) {
  const Accuracies accuracy = accuracy_of(plan);
  return fill(R"text(
    | fact | value |
    |---|---|
    | element | $element$, $packing$ |
    | scale | $scale$ |
    | rule from amax to scale | $rule$, $amax$ amax |
    | rowwise block | $rowwise$ |
    | columnwise block | $columnwise$ |
    $bits$
    | gather | $gather$ |
    | row step | $row_step$ |
    | row step of a shard | $shard_row_step$ |
    | passes of an optimizer step | $passes$ |
    | relative error on Gaussian data, rowwise | $rowwise_error$, $rowwise_decibels$ |
    | relative error on Gaussian data, columnwise | $columnwise_error$, $columnwise_decibels$ |
  )text",
              {{"element", std::string(word_of(plan.element))},
               {"packing", std::string(word_of(plan.packing))},
               {"scale", scale_text(plan)},
               {"rule", std::string(word_of(plan.rule))},
               {"amax", std::string(word_of(plan.amax))},
               {"rowwise", block_text(plan.rowwise)},
               {"columnwise", block_text(plan.columnwise)},
               {"bits", bits_rows(plan)},
               {"gather", gather_text(plan)},
               {"row_step", std::to_string(plan.row_step)},
               {"shard_row_step", std::to_string(plan.shard_row_step)},
               {"passes", std::to_string(plan.optimizer_passes)},
               {"rowwise_error", error_text(accuracy.rowwise)},
               {"rowwise_decibels", decibels_text(accuracy.rowwise)},
               {"columnwise_error", error_text(accuracy.columnwise)},
               {"columnwise_decibels", decibels_text(accuracy.columnwise)}});
}

std::string buffer_rows(const Plan& plan) {
  constexpr const char* kNames[NC_BUFFER_COUNT] = {"rowwise_data", "rowwise_scale_inv",
                                                   "columnwise_data", "columnwise_scale_inv"};
  std::string text;
  for (size_t i = 0; i < NC_BUFFER_COUNT; ++i) {
    const BufferShape& buffer = plan.example.buffers[i];
    text += fill("| `$name$` | $type$ | $shape$ | $bytes$ |\n",
                 {{"name", kNames[i]},
                  {"type", buffer.type},
                  {"shape", buffer.shape},
                  {"bytes", std::to_string(buffer.bytes)}});
    text += "\n";
  }
  if (plan.tensor_amax) text += "| `amax` | float32 | (1,) | 4 |\n";
  if (plan.delayed_amax) {
    text += "| `history` | float32 | (" + std::to_string(sizeof(nc_history) / sizeof(float)) +
            ",) | " + std::to_string(sizeof(nc_history)) + " |\n";
  }
  text.pop_back();
  return text;
}

std::string phase_rows(const Plan& plan) {
  std::string text;
  for (const Phase& phase : plan.phases) {
    text += fill("| $name$ | $gathers$ | $bits$ | $bytes$ |",
                 {{"name", phase.name},
                  {"gathers", phase.gathers},
                  {"bits", number_text(phase.bits_per_element)},
                  {"bytes", std::to_string(phase.example_bytes)}});
    text += "\n";
  }
  text.pop_back();
  return text;
}

std::string rule_rows(const Plan& plan) {
  constexpr const char* kOperations[NC_OPERATION_COUNT] = {"a cut", "the transpose", "a join",
                                                           "values into a part", "a new tensor"};
  std::string text;
  for (size_t i = 0; i < NC_OPERATION_COUNT; ++i) {
    const OperationRule& rule = plan.rules[i];
    text += std::string(i == 0 ? "" : "\n") + "| " + kOperations[i] + " | **" +
            (rule.exact ? "exact" : "error") + "**: " + rule.text + " |";
  }
  return text;
}

std::string product_rows(const Plan& plan) {
  constexpr const char* kProducts[NC_PRODUCT_COUNT] = {"forward", "input gradient",
                                                       "weight gradient"};
  std::string text;
  for (size_t i = 0; i < NC_PRODUCT_COUNT; ++i) {
    const Product& product = plan.products.product[i];
    text += fill("| $name$ | $reason$ | $machines$ |",
                 {{"name", kProducts[i]},
                  {"reason", product.reason},
                  {"machines", kProductKinds[product.kind].machines}});
    text += "\n";
  }
  text.pop_back();
  return text;
}

std::string products(const Plan& plan) {
  if (plan.products.input.empty())
    return "Those of decoded weights and plain activations: the spec names no formats that "
           "activations and gradients are cast to.";
  return fill(R"text(
    With `matmul="scaled"`, a linear layer casts its input to `$input$` and the gradient of its output to `$gradient$`, rounded $rounding$.
    A product is that of the decoded values; where the machine has no matrix unit for it, the operands are decoded first.

    | product | operands | matrix unit |
    |---|---|---|
    $rows$
  )text",
              {{"input", plan.products.input},
               {"gradient", plan.products.gradient},
               {"rounding", plan.products.stochastic_gradient ? "stochastically" : "to nearest"},
               {"rows", product_rows(plan)}});
}

}  // namespace

std::string emit_page(const Plan& plan) {
  Printer printer({{"name", plan.name}, {"origin", plan.origin}});
  printer.print(R"text(
    <!-- $origin$ -->
    # $name$

    $summary$

    Reference: $reference$

    $facts$

    ## Bytes

    Of a matrix of $rows$ x $columns$:

    ![The data and scales of $name$ in memory](layout.svg)

    $packing$ A value is decoded as $decoding$.

    | buffer | type | shape | bytes |
    |---|---|---|---|
    $buffers$

    ## Cuts

    - Row step $row_step$. $row_step_reason$
    - Row step of a shard $shard_row_step$. $shard_row_step_reason$

    ## What operations do with it

    | operation | outcome |
    |---|---|
    $rules$

    ## What FSDP2 gathers

    $gather_reason$

    | phase | all-gather | bits a parameter | bytes, of $rows$ x $columns$ |
    |---|---|---|---|
    $phases$

    A scale travels once a block, without padding; the bytes are those of all shards together, before FSDP2 makes them equally long.$filled$
    $optimizer_reason$ $amax_reason$

    ## Flat shards

    $flat_shards$

    ## Matrix products

    $products$

    ## Error

    $error_method$
  )text",
                {{"summary", plan.summary},
                 {"reference", plan.reference},
                 {"facts", facts(plan)},
                 {"rows", std::to_string(plan.example.rows)},
                 {"columns", std::to_string(plan.example.columns)},
                 {"packing", plan.reasons.packing},
                 {"decoding", plan.reasons.decoding},
                 {"buffers", buffer_rows(plan)},
                 {"row_step", std::to_string(plan.row_step)},
                 {"row_step_reason", plan.reasons.row_step},
                 {"shard_row_step", std::to_string(plan.shard_row_step)},
                 {"shard_row_step_reason", plan.reasons.shard_row_step},
                 {"rules", rule_rows(plan)},
                 {"gather_reason", plan.reasons.gather},
                 {"phases", phase_rows(plan)},
                 {"filled", filled_text(plan)},
                 {"optimizer_reason", plan.reasons.optimizer_passes},
                 {"amax_reason", plan.reasons.amax},
                 {"flat_shards", plan.reasons.flat_shards},
                 {"products", products(plan)},
                 {"error_method", accuracy_method()}});
  return printer.text();
}

}  // namespace narrowcast::codegen
