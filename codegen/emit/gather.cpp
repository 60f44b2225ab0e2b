// gather.hpp: what the gather of each phase carries, in the order of the wire.
#include "codegen/cpp_text.hpp"
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {
namespace {

constexpr const char* kBuffers[NC_BUFFER_COUNT] = {"NC_ROWWISE_DATA", "NC_ROWWISE_SCALE",
                                                   "NC_COLUMNWISE_DATA", "NC_COLUMNWISE_SCALE"};
constexpr const char* kLayouts[NC_BUFFER_COUNT] = {"kRowwise", "kRowwise", "kColumnwise",
                                                   "kColumnwise"};

// ", {16, 1}": the equal neighbours of which one travels; left out where there are none.
std::string equal(const Carried& carried) {
  if (!carried.repeats) return {};
  return ", {" + std::to_string(carried.equal_rows) + ", " + std::to_string(carried.equal_columns) +
         "}";
}

std::string carry(const Carried& carried) {
  const auto buffer = static_cast<size_t>(carried.buffer);
  return fill("$reason$\ncarry($kind$($buffer$, $layout$, Along::$along$$equal$));",
              {{"reason", comment(carried.reason)},
               {"kind", carried.scales ? "scales" : "data"},
               {"buffer", kBuffers[buffer]},
               {"layout", kLayouts[buffer]},
               {"along", carried.along_columns ? "kColumns" : "kRows"},
               {"equal", equal(carried)}});
}

std::string phase(const GatherOfPhase& gather) {
  std::string steps;
  for (const Carried& carried : gather.carried)
    steps += (steps.empty() ? "" : "\n") + carry(carried);
  return fill(R"text(
    $reason$
    template <class Carry>
    static void $name$(const Carry& carry) {
      $steps$
    }
  )text",
              {{"reason", comment(gather.reason)}, {"name", gather.name}, {"steps", steps}});
}

}  // namespace

std::string emit_gather(const Plan& plan) {
  Printer printer = cpp_file(
      plan, "What all-gathers carry of " + plan.name + ", once for packing and for unpacking.");
  std::string phases;
  for (const GatherOfPhase& gather : plan.gathers)
    phases += (phases.empty() ? "" : "\n\n") + phase(gather);
  printer.print(R"text(
    #pragma once

    #include "generated/$name$/format.hpp"
    #include "runtime/gather/pieces.hpp"

    namespace narrowcast::$namespace$::inline NC_VARIANT {

    $reason$
    struct Gather : Format {
      $phases$
    };

    }  // namespace narrowcast::$namespace$::inline NC_VARIANT
  )text",
                {{"reason", comment(plan.reasons.gather)}, {"phases", phases}});
  return printer.text();
}

}  // namespace narrowcast::codegen
