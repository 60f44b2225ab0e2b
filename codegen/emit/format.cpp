// format.hpp: the facts of a format, for the runtime's templates and for the plugin's table.
#include <set>

#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"
#include "runtime/geometry/geometry.hpp"

namespace narrowcast::codegen {
namespace {

std::string flag(bool value) { return value ? "true" : "false"; }

std::string layout(const nc_layout& layout) {
  return fill(R"text(
    {
        .block_rows = $block_rows$,
        .block_columns = $block_columns$,
        .scale_per_rows = $scale_per_rows$,
        .scale_per_columns = $scale_per_columns$,
        .scale_pad_rows = $scale_pad_rows$,
        .scale_pad_columns = $scale_pad_columns$,
        .transposed = $transposed$,
        .scale_transposed = $scale_transposed$,
        .element_bits = $element_bits$,
        .scale_bytes = $scale_bytes$,
    }
  )text",
              {{"block_rows", std::to_string(layout.block_rows)},
               {"block_columns", std::to_string(layout.block_columns)},
               {"scale_per_rows", std::to_string(layout.scale_per_rows)},
               {"scale_per_columns", std::to_string(layout.scale_per_columns)},
               {"scale_pad_rows", std::to_string(layout.scale_pad_rows)},
               {"scale_pad_columns", std::to_string(layout.scale_pad_columns)},
               {"transposed", flag(layout.transposed)},
               {"scale_transposed", flag(layout.scale_transposed)},
               {"element_bits", std::to_string(layout.element_bits)},
               {"scale_bytes", std::to_string(layout.scale_bytes)}});
}

std::string columnwise(const Plan& plan) {
  return same(mirror(plan.rowwise), plan.columnwise) ? "mirror(kRowwise)" : layout(plan.columnwise);
}

// In the order of their names, in which clang-format would put them.
std::string includes(const Plan& plan) {
  const std::set<std::string> headers = {"runtime/geometry/geometry.hpp",
                                         "runtime/numeric/scale_rule.hpp", "runtime/plugin/table.h",
                                         plan.types.header};
  std::string lines;
  for (const std::string& header : headers) lines += "#include \"" + header + "\"\n";
  lines.pop_back();
  return lines;
}

}  // namespace

std::string emit_format(const Plan& plan) {
  Printer printer =
      cpp_file(plan, "The facts of " + plan.name + ", for templates and for its plugin's table.");
  printer.print(R"text(
    #pragma once

    $includes$

    namespace narrowcast::$namespace$::inline NC_VARIANT {

    struct Format {
      using Element = $element$;
      using ScaleType = $scale$;

      static constexpr Layout kRowwise = $rowwise$;
      static constexpr Layout kColumnwise = $columnwise$;

      static constexpr bool kTensorAmax = $tensor_amax$;
      static constexpr bool kDelayedAmax = $delayed_amax$;
      static constexpr float kTensorRange = $tensor_range$;
      static constexpr bool kColumnwiseDerived = $columnwise_derived$;
      $tile_rows_reason$
      static constexpr int kTileRows = $tile_rows$;
      $strip_tiles_reason$
      static constexpr int kStripTiles = $strip_tiles$;
    };

    $table_facts$

    }  // namespace narrowcast::$namespace$::inline NC_VARIANT
  )text",
                {{"includes", includes(plan)},
                 {"rowwise", layout(plan.rowwise)},
                 {"columnwise", columnwise(plan)},
                 {"tensor_amax", flag(plan.tensor_amax)},
                 {"delayed_amax", flag(plan.delayed_amax)},
                 {"tensor_range", number(plan.tensor_range)},
                 {"columnwise_derived", flag(plan.columnwise_derived)},
                 {"tile_rows_reason", comment(plan.reasons.tile_rows)},
                 {"tile_rows", std::to_string(plan.tile_rows)},
                 {"strip_tiles_reason", comment(plan.reasons.strip_tiles)},
                 {"strip_tiles", std::to_string(plan.strip_tiles)},
                 {"table_facts", table_facts(plan)}});
  return printer.text();
}

}  // namespace narrowcast::codegen
