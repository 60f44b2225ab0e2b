// plugin.cpp: the C table that the format's shared library exports.
#include <sstream>

#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

// A double as a literal that reads back as the same bits.
std::string literal(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

std::string quoted_or_null(std::string_view word) {
  return word.empty() ? "nullptr" : '"' + std::string(word) + '"';
}

}  // namespace

std::string emit_plugin(const Plan& plan) {
  Printer printer = cpp_file(plan, "The table that the plugin " + plan.name + " exports.");
  printer.print(
      R"text(
    #include "generated/$name$/format.hpp"
    #include "generated/$name$/views.hpp"
    #include "runtime/plugin/export.hpp"

    namespace narrowcast::$name$ {

    NC_DECLARE_MACHINES

    namespace {

    constexpr nc_format kFormat = {
        .name = "$name$",
        $summary$
        $reference$
        .element = "$element_word$",
        .packing = "$packing_word$",
        .scale = "$scale_word$",
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
        .cuts = {kCuts[0], kCuts[1], kCuts[2], kCuts[3]},
    };

    const nc_machine* variant(const char* name);

    const PluginTable& table() {
      static const PluginTable kTable(kFormat, &baseline::cpu_machine(), NC_AVX_MACHINES,
                                      NC_CUDA_MACHINE, variant);
      return kTable;
    }

    const nc_machine* variant(const char* name) { return table().variant(name); }

    }  // namespace
    }  // namespace narrowcast::$name$

    $entry$
  )text",
      {{"summary", string_member("summary", plan.summary, 4)},
       {"reference", string_member("reference", plan.reference, 4)},
       {"element_word", std::string(word_of(plan.element))},
       {"packing_word", std::string(word_of(plan.packing))},
       {"scale_word", std::string(word_of(plan.scale))},
       {"tensor_scale", quoted_or_null(word_of(plan.tensor_scale))},
       {"rule_word", std::string(word_of(plan.rule))},
       {"amax_word", std::string(word_of(plan.amax))},
       {"row_step", std::to_string(plan.row_step)},
       {"shard_row_step", std::to_string(plan.shard_row_step)},
       {"bits_per_element", literal(plan.bits_per_element)},
       {"wire_bits_per_element", literal(plan.wire_bits_per_element)},
       {"entry", short_function("NC_EXPORT const nc_plugin* narrowcast_plugin()",
                                "return narrowcast::" + plan.name + "::table().get();", 0)}});
  return printer.text();
}

}  // namespace narrowcast::codegen
