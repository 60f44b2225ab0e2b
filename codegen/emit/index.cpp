// README.md of the folder of all formats.
#include "codegen/accuracy.hpp"
#include "codegen/emit/emit.hpp"
#include "codegen/page_text.hpp"
#include "codegen/reasons.hpp"

namespace narrowcast::codegen {
namespace {

std::string blocks(const Plan& plan) {
  const std::string rowwise = block_text(plan.rowwise), columnwise = block_text(plan.columnwise);
  return plan.columnwise_derived ? rowwise : rowwise + " and " + columnwise;
}

std::string row(const Plan& plan) {
  const Accuracy accuracy = accuracy_of(plan).rowwise;
  return fill(
      "| [`$name$`]($name$/page.md) | $element$ | $scale$ | $blocks$ | $bits$ | $wire$ "
      "| $gather$ | $row_step$ | $passes$ | $error$ | $decibels$ |",
      {{"name", plan.name},
       {"element", std::string(word_of(plan.element))},
       {"scale", scale_text(plan)},
       {"blocks", blocks(plan)},
       {"bits", number_text(plan.bits_per_element)},
       {"wire", number_text(plan.wire_bits_per_element)},
       {"gather", gather_text(plan)},
       {"row_step", std::to_string(plan.row_step)},
       {"passes", std::to_string(plan.optimizer_passes)},
       {"error", error_text(accuracy)},
       {"decibels", decibels_text(accuracy)}});
}

}  // namespace

std::string emit_index(std::span<const Plan> plans) {
  std::string rows;
  for (const Plan& plan : plans) rows += (rows.empty() ? "" : "\n") + row(plan);
  Printer printer({});
  printer.print(R"text(
    <!-- Made from all files of spec/; edit those and run `make regenerate`. -->
    # All formats

    | format | element | scale | blocks | bits | on the wire | gather | row step | passes | relative error | signal to noise |
    |---|---|---|---|---|---|---|---|---|---|---|
    $rows$

    - **blocks**: elements that share a scale, rows x columns; two where the usages differ, rowwise first.
    - **bits**: of an element of one usage (of rowwise, where they differ), its share of the scales included, as stored and without padding; **on the wire**: as a gather carries it, each scale once.
    - **gather**: *rowwise*: every all-gather carries the rowwise bytes, and columnwise is derived from them. *by pass*: the forward gathers rowwise, the backward columnwise.
    - **row step**: a matrix can be cut at multiples of so many rows. **passes**: kernels of an optimizer step.
    - **relative error**, **signal to noise**: of rowwise. $method$

    Each format's page shows its bytes in memory, and what each phase of FSDP2 gathers. The facts are those of [spec/](../spec/README.md), the bytes those of
    [docs/numerics.md](../docs/numerics.md).
  )text",
                {{"rows", rows}, {"method", accuracy_method()}});
  return printer.text();
}

}  // namespace narrowcast::codegen
