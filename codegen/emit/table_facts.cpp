// What the C table of the format's plugin says of it: the second half of format.hpp.
#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

std::string quoted_or_null(std::string_view word) {
  return word.empty() ? "nullptr" : quoted(word);
}

std::string rules(const Plan& plan) {
  std::string text;
  for (const OperationRule& rule : plan.rules)
    text += std::string(rule.exact ? "{1, 0, " : "{0, 0, ") + quoted(rule.text) + "},\n";
  text.pop_back();
  return text;
}

std::string products(const Plan& plan) {
  static constexpr const char* kKinds[NC_PRODUCT_KIND_COUNT] = {
      "NC_DECODED",        "NC_TENSOR_BY_TENSOR", "NC_1X128_BY_128X128",
      "NC_1X128_BY_1X128", "NC_1X32_E8M0",        "NC_1X16_E4M3"};
  if (plan.products.input.empty()) return ".products = {},";
  std::string each;
  for (const Product& product : plan.products.product)
    each += std::string("{") + kKinds[product.kind] + ", 0, " + quoted(product.reason) + "},\n";
  each.pop_back();
  return fill(R"text(
    .products =
        {
            .input = "$input$",
            .gradient = "$gradient$",
            .product =
                {
                    $each$
                },
            .stochastic_gradient = $stochastic$,
        },
  )text",
              {{"input", plan.products.input},
               {"gradient", plan.products.gradient},
               {"each", each},
               {"stochastic", plan.products.stochastic_gradient ? "true" : "false"}});
}

}  // namespace

std::string table_facts(const Plan& plan) {
  return fill(
      R"text(
    inline constexpr nc_format kFacts = {
        .name = "$name$",
        .summary = $summary$,
        .reference = $reference$,
        .element = "$element_word$",
        .packing = "$packing_word$",
        .scale = "$scale_word$",
        .scale_dtype = "$scale_dtype$",
        .tensor_scale = $tensor_scale$,
        .scale_rule = "$rule_word$",
        .amax = "$amax_word$",
        .rowwise = Format::kRowwise,
        .columnwise = Format::kColumnwise,
        .columnwise_derived = Format::kColumnwiseDerived,
        .tensor_amax = Format::kTensorAmax,
        .row_step = $row_step$,
        .shard_row_step = $shard_row_step$,
        .bits_per_element = $bits_per_element$,
        .wire_bits_per_element = $wire_bits_per_element$,
        .rules =
            {
                $rules$
            },
        $products$
        .tensor_range = Format::kTensorRange,
        .significant_bits = $significant_bits$,
    };
  )text",
      {{"name", plan.name},
       {"summary", quoted(plan.summary)},
       {"reference", quoted(plan.reference)},
       {"element_word", std::string(word_of(plan.element))},
       {"packing_word", std::string(word_of(plan.packing))},
       {"scale_word", std::string(word_of(plan.scale))},
       {"scale_dtype", plan.scale_dtype},
       {"tensor_scale", quoted_or_null(word_of(plan.tensor_scale))},
       {"rule_word", std::string(word_of(plan.rule))},
       {"amax_word", std::string(word_of(plan.amax))},
       {"row_step", std::to_string(plan.row_step)},
       {"shard_row_step", std::to_string(plan.shard_row_step)},
       {"bits_per_element", number(plan.bits_per_element)},
       {"wire_bits_per_element", number(plan.wire_bits_per_element)},
       {"rules", rules(plan)},
       {"products", products(plan)},
       {"significant_bits", std::to_string(plan.significant_bits)}});
}

}  // namespace narrowcast::codegen
