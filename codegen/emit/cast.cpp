// cast.hpp: the sequence of tile operations that makes the bytes, and those that read them back.
#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

// "<16, 16>": the blocks of a tile operation. A scale that spans the tensor spans the tile.
std::string blocks(const nc_layout& layout) {
  if (layout.block_rows == 0) return "<Tile::kRows, Tile::kColumns>";
  return "<" + std::to_string(layout.block_rows) + ", " + std::to_string(layout.block_columns) +
         ">";
}

// What a rule or a decoder of two levels is made from.
std::string level_above(const Plan& plan) { return plan.two_levels ? "{in.tensor_amax}" : "{}"; }

// The scale of a whole tensor: from its amax, or what earlier steps have decided.
std::string tensor_scale(const Plan& plan) {
  return plan.delayed_amax ? "scale_of<ScaleType>(in.multiplier)"
                           : "unless_nan(Rule{}, in.tensor_amax)";
}

std::string scale_of(const Plan& plan, const nc_layout& layout) {
  if (plan.spans_tensor) return "x.tensor_scale(" + tensor_scale(plan) + ")";
  return "x.template block_amax" + blocks(layout) + "().map(Rule" + level_above(plan) + ")";
}

// The name of the inputs, left out where nothing reads them.
std::string inputs(bool read) { return read ? "const Inputs<>& in" : "const Inputs<>&"; }

// One scale and one encoding for both usages.
std::string cast_once(const Printer& printer, const Plan& plan) {
  return printer.fill(R"text(
    $rowwise_reason$
    const auto scale = $scale_of$;
    const auto codes = x.template encode<$element$>(scale, in.rounding);
    if (out.rowwise) {
      x.store(out.rowwise_data, codes);
      x.store_scale(out.rowwise_scale, scale);
    }
    $columnwise_reason$
    if (out.columnwise) {
      x.store(out.columnwise_data, codes);
      x.store_scale(out.columnwise_scale, scale);
    }
  )text",
                      {{"rowwise_reason", comment(plan.reasons.rowwise)},
                       {"scale_of", scale_of(plan, plan.rowwise)},
                       {"columnwise_reason", comment(plan.reasons.columnwise)}});
}

// A scale and an encoding for each usage.
std::string cast_twice(const Printer& printer, const Plan& plan) {
  return printer.fill(R"text(
    $rowwise_reason$
    if (out.rowwise) {
      const auto scale = $rowwise_scale$;
      x.store(out.rowwise_data, x.template encode<$element$>(scale, in.rounding));
      x.store_scale(out.rowwise_scale, scale);
    }
    $columnwise_reason$
    if (out.columnwise) {
      const auto scale = $columnwise_scale$;
      x.store(out.columnwise_data, x.template encode<$element$>(scale, in.rounding));
      x.store_scale(out.columnwise_scale, scale);
    }
  )text",
                      {{"rowwise_reason", comment(plan.reasons.rowwise)},
                       {"rowwise_scale", scale_of(plan, plan.rowwise)},
                       {"columnwise_reason", comment(plan.reasons.columnwise)},
                       {"columnwise_scale", scale_of(plan, plan.columnwise)}});
}

// Finding an amax tells it to the other owners, where they share the block.
std::string collect(const Printer& printer, const Plan& plan) {
  const std::string reason = comment(plan.reasons.collect);
  if (plan.spans_tensor) {
    return printer.fill(R"text(
      $reason$
      template <class Tile>
      NC_MACHINE static void collect(const Tile&) {}
    )text",
                        {{"reason", reason}});
  }
  const auto amax = [](const nc_layout& layout) {
    return "x.template block_amax" + blocks(layout) + "();";
  };
  return printer.fill(
      R"text(
    $reason$
    template <class Tile>
    NC_MACHINE static void collect(const Tile& x) {
      $rowwise$
      $columnwise$
    }
  )text",
      {{"reason", reason},
       {"rowwise", amax(plan.rowwise)},
       {"columnwise", plan.columnwise_derived ? "" : amax(plan.columnwise)}});
}

std::string derive_columnwise(const Printer& printer, const Plan& plan) {
  if (!plan.columnwise_derived) return {};
  return printer.fill(R"text(

    // Columnwise from the rowwise bytes, after a gather.
    template <class Tile>
    NC_MACHINE static void derive_columnwise(Tile& x, const TensorBuffers& out) {
      const auto scale = x.template load_scale$blocks$(out.rowwise_scale);
      x.store(out.columnwise_data, x.load_codes(out.rowwise_data));
      x.store_scale(out.columnwise_scale, scale);
    }
  )text",
                      {{"blocks", blocks(plan.rowwise)}});
}

std::string decode(const Printer& printer, const Plan& plan, const nc_layout& layout,
                   const std::string& usage) {
  return printer.fill(R"text(
    template <class Tile>
    NC_MACHINE static void decode_$usage$(Tile& x, $inputs$, const TensorBuffers& from) {
      const auto scale = x.template load_scale$blocks$(from.$usage$_scale);
      x.template decode<$element$>(x.load_codes(from.$usage$_data), scale, Decoder$level_above$);
    }
  )text",
                      {{"usage", usage},
                       {"inputs", inputs(plan.two_levels)},
                       {"blocks", blocks(layout)},
                       {"level_above", level_above(plan)}});
}

// What the rule and the decoder are.
std::string levels(const Plan& plan) {
  const std::string amax = plan.delayed_amax ? "the largest amax of the history" : "the amax";
  return "From " + amax + " to the scale, and from the scale to what codes are multiplied by.";
}

}  // namespace

std::string emit_cast(const Plan& plan) {
  Printer printer = cpp_file(plan, "The cast of " + plan.name + ", once for both machines.");
  printer.print(
      R"text(
    #pragma once

    #include "generated/$name$/format.hpp"
    #include "runtime/tile/buffers.hpp"

    namespace narrowcast::$namespace$::inline NC_VARIANT {

    struct Sequence : Format {
      using TensorBuffers = Buffers<Format>;
      $levels$
      using Rule = $rule$;
      using Decoder = $decoder$;

      $first_pass$
      template <class Tile, class Rounding>
      NC_MACHINE static void cast(Tile& x, const Inputs<Rounding>& in, const TensorBuffers& out) {
        $cast$
      }

      $collect$
      $derive_columnwise$

      $decode_rowwise$

      $decode_columnwise$
    };

    }  // namespace narrowcast::$namespace$::inline NC_VARIANT
  )text",
      {{"first_pass", comment(plan.reasons.first_pass)},
       {"levels", comment(levels(plan))},
       {"cast", plan.columnwise_derived ? cast_once(printer, plan) : cast_twice(printer, plan)},
       {"collect", collect(printer, plan)},
       {"derive_columnwise", derive_columnwise(printer, plan)},
       {"decode_rowwise", decode(printer, plan, plan.rowwise, "rowwise")},
       {"decode_columnwise", decode(printer, plan, plan.columnwise, "columnwise")}});
  return printer.text();
}

}  // namespace narrowcast::codegen
