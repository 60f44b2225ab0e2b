// A state format: its header for the update loops, and its page.
#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

Values values_of(const Plan& plan) {
  const auto& [block, roots] = plan.state;
  return {{"origin", plan.origin},
          {"name", plan.name},
          {"block", std::to_string(block)},
          {"signed_root", std::to_string(roots[0])},
          {"nonnegative_root", std::to_string(roots[1])},
          {"bits", number(8 + 32.0 / static_cast<double>(block))}};
}

// A value by its code, and the scale by the block's largest magnitude.
std::string formula(int64_t root, const char* raised, const char* most) {
  const std::string power = root == 1 ? "" : "^" + std::to_string(root);
  return "`" + std::string(root == 1 ? "code" : raised) + power +
         " * scale`, where the scale is the block's largest "
         "magnitude divided by " +
         most + power;
}

}  // namespace

std::string emit_state(const Plan& plan) {
  Printer printer = cpp_file(plan, "The state format " + plan.name + ", for the update loops.");
  Values values = values_of(plan);
  values["summary"] = quoted(plan.summary);
  values["reference"] = quoted(plan.reference);
  printer.print(R"text(
    #pragma once

    #include "runtime/state/root_code.hpp"

    namespace narrowcast::$namespace$::inline NC_VARIANT {

    struct State {
      static constexpr const char* kName = "$name$";
      static constexpr const char* kSummary = $summary$;
      static constexpr const char* kReference = $reference$;
      static constexpr int kBlock = $block$;
      static constexpr int kRoots[] = {$signed_root$, $nonnegative_root$};
      using Signed = RootCode<kRoots[0], true>;
      using Nonnegative = RootCode<kRoots[1], false>;
    };

    }  // namespace narrowcast::$namespace$::inline NC_VARIANT
  )text",
                values);
  return printer.text();
}

std::string emit_state_page(const Plan& plan) {
  Printer printer(values_of(plan));
  printer.print(R"text(
    <!-- $origin$ -->
    # $name$

    $summary$

    Reference: $reference$

    | fact | value |
    |---|---|
    | kind | state: of what an optimizer keeps, `state_dtype="$name$"` |
    | block | $block$ elements of a row; the last one of a row may be short |
    | bits an element | $bits$ |
    | state of both signs | int8: $signed$ |
    | state that is never negative | uint8: $nonnegative$ |

    Parameters of one dimension, and those whose rows are shorter than a block, keep their state in float32. A cut between ranks divides no block.
  )text",
                {{"summary", plan.summary},
                 {"reference", plan.reference},
                 {"signed", formula(plan.state.roots[0], "sign(code) * code", "127")},
                 {"nonnegative", formula(plan.state.roots[1], "code", "255")}});
  return printer.text();
}

}  // namespace narrowcast::codegen
