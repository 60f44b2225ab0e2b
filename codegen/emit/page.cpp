// page.md: the format for a human reader.
#include <sstream>

#include "codegen/emit/emit.hpp"
#include "codegen/picture.hpp"
#include "codegen/reasons.hpp"

namespace narrowcast::codegen {
namespace {

std::string number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string scales(const Plan& plan) {
  const std::string block_scale(word_of(plan.scale));
  return plan.two_levels
             ? block_scale + ", under a tensor scale of " + std::string(word_of(plan.tensor_scale))
             : block_scale;
}

std::string facts(const Plan& plan) {
  return fill(R"text(
    | fact | value |
    |---|---|
    | element | $element$, $packing$ |
    | scale | $scale$ |
    | rule from amax to scale | $rule$, $amax$ amax |
    | rowwise block | $rowwise$ |
    | columnwise block | $columnwise$ |
    | bits an element, one usage as stored | $bits$ |
    | bits an element on the wire | $wire_bits$ |
    | gather | $gather$ |
    | row step | $row_step$ |
    | row step of a shard | $shard_row_step$ |
    | passes of an optimizer step | $passes$ |
  )text",
              {{"element", std::string(word_of(plan.element))},
               {"packing", std::string(word_of(plan.packing))},
               {"scale", scales(plan)},
               {"rule", std::string(word_of(plan.rule))},
               {"amax", std::string(word_of(plan.amax))},
               {"rowwise", block_text(plan.rowwise)},
               {"columnwise", block_text(plan.columnwise)},
               {"bits", number(plan.bits_per_element)},
               {"wire_bits", number(plan.wire_bits_per_element)},
               {"gather", plan.gather == Gather::kRowwise ? "rowwise" : "by pass"},
               {"row_step", std::to_string(plan.row_step)},
               {"shard_row_step", std::to_string(plan.shard_row_step)},
               {"passes", std::to_string(plan.optimizer_passes)}});
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
  text.pop_back();
  return text;
}

std::string usage(const std::string& title, const nc_layout& layout) {
  return fill(R"text(
    ### $title$

    $data$ $packing$

    ```
    $picture$
    ```
  )text",
              {{"title", title},
               {"data", layout.transposed
                            ? "Data are stored transposed: a stored row is a column of the matrix."
                            : "Data are stored as the matrix lies, row by row."},
               {"packing", packing_of(layout)},
               {"picture", picture_of_blocks(layout)}});
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

    $gather_reason$ $row_step_reason$

    ## Buffers

    Of a matrix of $rows$ x $columns$:

    | buffer | type | shape | bytes |
    |---|---|---|---|
    $buffers$

    ## Bytes

    $rowwise$

    $columnwise$
  )text",
                {{"summary", plan.summary},
                 {"reference", plan.reference},
                 {"facts", facts(plan)},
                 {"gather_reason", plan.reasons.gather},
                 {"row_step_reason", plan.reasons.row_step},
                 {"rows", std::to_string(plan.example.rows)},
                 {"columns", std::to_string(plan.example.columns)},
                 {"buffers", buffer_rows(plan)},
                 {"rowwise", usage("Rowwise", plan.rowwise)},
                 {"columnwise", usage("Columnwise", plan.columnwise)}});
  return printer.text();
}

}  // namespace narrowcast::codegen
