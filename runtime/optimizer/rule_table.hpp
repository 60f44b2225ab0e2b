// A library's rules and their kernels, as its table has them.
#pragma once

#include <iterator>

#include "rules.hpp"
#include "runtime/machine.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

template <class Rule>
constexpr nc_update_rule facts_of_rule() {
  static_assert(kOptionCount<Rule> + 1 == std::size(Rule::kOptionNames),
                "kOptionNames has a name for each number of Options, and nullptr behind them");
  static_assert(kOptionCount<Rule> <= NC_OPTION_COUNT,
                "a rule has at most NC_OPTION_COUNT options");
  static_assert(Rule::kStates + 1 == std::size(Rule::kStateNames),
                "kStateNames has kStates names, and nullptr behind them");
  static_assert(0 <= Rule::kStates && Rule::kStates <= NC_STATE_COUNT,
                "a rule keeps at most two numbers of an element");
  const int32_t* nonnegative = nullptr;
  if constexpr (KeptInFormats<Rule>) nonnegative = Rule::kNonnegative;
  constexpr auto kAtStep = [](const double* options, int64_t t, float* constants) {
    make_constants<Rule>(options, t, constants);
  };
  return {Rule::kName, Rule::kStateNames, nonnegative, Rule::kOptionNames, kAtStep};
}

// Kernels: `update<Rule>`, or where they have two passes `update_amax<Rule>`; and `begin<Rule>` of
// a machine that can count steps.
template <class Kernels, class Rule>
constexpr nc_update update_by() {
  nc_update made{};
  if constexpr (Kernels::kTwoPasses)
    made.update_amax = Kernels::template update_amax<Rule>;
  else
    made.update = Kernels::template update<Rule>;
  if constexpr (Kernels::kCountsSteps) made.begin = Kernels::template begin<Rule>;
  return made;
}

// The rules' facts, and the kernels of each.
template <class Rules>
struct RuleTable;
template <class... Rule>
struct RuleTable<RuleList<Rule...>> {
  static constexpr nc_update_rule kFacts[] = {facts_of_rule<Rule>()...};
  template <class Kernels>
  static constexpr nc_update kUpdates[] = {update_by<Kernels, Rule>()...};
};

}  // namespace narrowcast::inline NC_VARIANT
