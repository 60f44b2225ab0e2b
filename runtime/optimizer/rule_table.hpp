// A library's rules and their kernels, as its table has them.
#pragma once

#include <algorithm>
#include <iterator>

#include "rules.hpp"
#include "runtime/machine.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::inline NC_VARIANT {

template <class Rule>
constexpr nc_update_rule facts_of_rule() {
  constexpr auto kAtStep = [](const double* options, int64_t t, float* constants) {
    typename Rule::Options named;
    static_assert(sizeof(named) + sizeof(double) == std::size(Rule::kOptionNames) * sizeof(double),
                  "kOptionNames has a name for each number of Options, and nullptr behind them");
    std::copy_n(options, sizeof(named) / sizeof(double), reinterpret_cast<double*>(&named));
    const typename Rule::Constants made = Rule::at_step(named, t);
    std::copy_n(reinterpret_cast<const float*>(&made), sizeof(made) / sizeof(float), constants);
  };
  static_assert(Rule::kStates + 1 == std::size(Rule::kStateNames),
                "kStateNames has kStates names, and nullptr behind them");
  static_assert(0 <= Rule::kStates && Rule::kStates <= NC_STATE_COUNT,
                "a rule keeps at most two numbers of an element");
  const int32_t* nonnegative = nullptr;
  if constexpr (KeptInFormats<Rule>) nonnegative = Rule::kNonnegative;
  return {Rule::kName, Rule::kStateNames, nonnegative, Rule::kOptionNames, kAtStep};
}

// Kernels: `update<Rule>`, or where they have two passes `update_amax<Rule>`.
template <class Kernels, class Rule>
constexpr nc_update update_by() {
  if constexpr (Kernels::kTwoPasses)
    return {nullptr, Kernels::template update_amax<Rule>};
  else
    return {Kernels::template update<Rule>, nullptr};
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
