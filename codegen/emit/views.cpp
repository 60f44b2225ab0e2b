// views.hpp: how a cut of rows lies in each buffer.
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

std::string buffer_name(int32_t buffer) {
  switch (buffer) {
    case NC_ROWWISE_DATA:
      return "NC_ROWWISE_DATA";
    case NC_ROWWISE_SCALE:
      return "NC_ROWWISE_SCALE";
    case NC_COLUMNWISE_DATA:
      return "NC_COLUMNWISE_DATA";
    default:
      return "NC_COLUMNWISE_SCALE";
  }
}

std::string gather_name(int32_t gather) {
  switch (gather) {
    case NC_GATHER_NEVER:
      return "NC_GATHER_NEVER";
    case NC_GATHER_FORWARD:
      return "NC_GATHER_FORWARD";
    case NC_GATHER_BACKWARD:
      return "NC_GATHER_BACKWARD";
    default:
      return "NC_GATHER_ALWAYS";
  }
}

std::string row_of(const nc_cut& cut) {
  return fill(
      "{$buffer$, $dimension$, $rows$, $entries$, $pad$, {$repeat0$, $repeat1$}, $gather$, 0},",
      {{"buffer", buffer_name(cut.buffer)},
       {"dimension", std::to_string(cut.dimension)},
       {"rows", std::to_string(cut.rows)},
       {"entries", std::to_string(cut.entries)},
       {"pad", std::to_string(cut.pad)},
       {"repeat0", std::to_string(cut.repeat[0])},
       {"repeat1", std::to_string(cut.repeat[1])},
       {"gather", gather_name(cut.gather)}});
}

}  // namespace

std::string emit_views(const Plan& plan) {
  Printer printer =
      cpp_file(plan, "How a cut of a " + plan.name +
                         " matrix's rows lies in each buffer, and which gather carries it.");
  std::string rows;
  for (const nc_cut& cut : plan.cuts) rows += row_of(cut) + "\n";
  rows.pop_back();
  printer.print(R"text(
    #pragma once

    #include "runtime/plugin/table.h"

    namespace narrowcast::$name$ {

    inline constexpr nc_cut kCuts[NC_BUFFER_COUNT] = {
        // buffer, dimension, rows, entries, pad, repeat, gather, reserved
        $rows$
    };

    }  // namespace narrowcast::$name$
  )text",
                {{"rows", rows}});
  return printer.text();
}

}  // namespace narrowcast::codegen
