// facts.json: what follows from the spec, for pages and for whoever reads formats by program. The
// shapes are those of the plan's example.
#include "codegen/accuracy.hpp"
#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"
#include "runtime/products/kinds.hpp"

namespace narrowcast::codegen {
namespace {

std::string flag(bool value) { return value ? "true" : "false"; }

std::string pair(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

std::string buffer(const BufferShape& buffer) {
  return fill(R"({"type": "$type$", "shape": $shape$, "bytes": $bytes$})",
              {{"type", buffer.type},
               {"shape", pair(buffer.shape.rows, buffer.shape.columns)},
               {"bytes", std::to_string(buffer.bytes)}});
}

std::string usage(const Plan& plan, const nc_layout& layout, const ExampleUsage& example,
                  double bits, double wire_bits) {
  const std::string block =
      layout.block_rows == 0 ? quoted("tensor") : pair(layout.block_rows, layout.block_columns);
  return fill(R"text(
    {
      "block": $block$,
      "bits": $bits$,
      "wire_bits": $wire_bits$,
      "wire_bytes": $wire_bytes$,
      "relative_error": $relative_error$,
      "data": $data$,
      "scale": $scale$
    }
  )text",
              {{"block", block},
               {"bits", number(bits)},
               {"wire_bits", number(wire_bits)},
               {"wire_bytes", std::to_string(example.wire_bytes)},
               {"relative_error", number(relative_error(plan, layout))},
               {"data", buffer(example.data)},
               {"scale", buffer(example.scale)}});
}

std::string rules(const Plan& plan) {
  std::string text;
  for (const OperationRule& rule : plan.rules) {
    text += std::string(text.empty() ? "" : ",\n") + "{\"exact\": " + flag(rule.exact) +
            ", \"text\": " + json_string(rule.text) + "}";
  }
  return text;
}

std::string matmul(const ProductPlan& products) {
  if (products.input.empty()) return "null";
  std::string each;
  for (const Product& product : products.product) {
    each += std::string(each.empty() ? "" : ",\n") + "{\"reason\": " + json_string(product.reason) +
            ", \"machines\": " + json_string(kProductKinds[product.kind].machines) + "}";
  }
  return fill(R"text(
    {
      "input": "$input$",
      "gradient": "$gradient$",
      "stochastic_gradient": $stochastic$,
      "products": [
        $each$
      ]
    }
  )text",
              {{"input", products.input},
               {"gradient", products.gradient},
               {"stochastic", flag(products.stochastic_gradient)},
               {"each", each}});
}

std::string reasons(const Reasons& reasons) {
  return fill(R"text(
    {
      "packing": $packing$,
      "decoding": $decoding$,
      "row_step": $row_step$,
      "shard_row_step": $shard_row_step$,
      "gather": $gather$,
      "optimizer_passes": $optimizer_passes$,
      "amax": $amax$,
      "flat_shards": $flat_shards$
    }
  )text",
              {{"packing", json_string(reasons.packing)},
               {"decoding", json_string(reasons.decoding)},
               {"row_step", json_string(reasons.row_step)},
               {"shard_row_step", json_string(reasons.shard_row_step)},
               {"gather", json_string(reasons.gather)},
               {"optimizer_passes", json_string(reasons.optimizer_passes)},
               {"amax", json_string(reasons.amax)},
               {"flat_shards", json_string(reasons.flat_shards)}});
}

}  // namespace

std::string emit_facts(const Plan& plan) {
  const std::string_view tensor_scale = word_of(plan.tensor_scale);
  Printer printer({});
  printer.print(R"text(
    {
      "origin": $origin$,
      "name": "$name$",
      "summary": $summary$,
      "reference": $reference$,
      "element": "$element$",
      "packing": "$packing$",
      "scale": "$scale$",
      "tensor_scale": $tensor_scale$,
      "scale_rule": "$rule$",
      "amax": "$amax$",
      "tensor_amax": $tensor_amax$,
      "history": $history$,
      "gather": "$gather$",
      "row_step": $row_step$,
      "shard_row_step": $shard_row_step$,
      "optimizer_passes": $passes$,
      "shape": $shape$,
      "rowwise": $rowwise$,
      "columnwise": $columnwise$,
      "rules": [
        $rules$
      ],
      "matmul": $matmul$,
      "reasons": $reasons$
    }
  )text",
                {{"origin", json_string(plan.origin)},
                 {"name", plan.name},
                 {"summary", json_string(plan.summary)},
                 {"reference", json_string(plan.reference)},
                 {"element", std::string(word_of(plan.element))},
                 {"packing", std::string(word_of(plan.packing))},
                 {"scale", std::string(word_of(plan.scale))},
                 {"tensor_scale", tensor_scale.empty() ? "null" : quoted(tensor_scale)},
                 {"rule", std::string(word_of(plan.rule))},
                 {"amax", std::string(word_of(plan.amax))},
                 {"tensor_amax", flag(plan.tensor_amax)},
                 {"history", std::to_string(plan.delayed_amax ? sizeof(nc_history) / 4 : 0)},
                 {"gather", plan.gather == Gather::kRowwise ? "rowwise" : "by pass"},
                 {"row_step", std::to_string(plan.row_step)},
                 {"shard_row_step", std::to_string(plan.shard_row_step)},
                 {"passes", std::to_string(plan.optimizer_passes)},
                 {"shape", pair(plan.example.matrix.rows, plan.example.matrix.columns)},
                 {"rowwise", usage(plan, plan.rowwise, plan.example.rowwise, plan.bits_per_element,
                                   plan.wire_bits_per_element)},
                 {"columnwise", usage(plan, plan.columnwise, plan.example.columnwise,
                                      plan.columnwise_bits, plan.columnwise_wire_bits)},
                 {"rules", rules(plan)},
                 {"matmul", matmul(plan.products)},
                 {"reasons", reasons(plan.reasons)}});
  return printer.text();
}

}  // namespace narrowcast::codegen
