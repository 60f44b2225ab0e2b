// From the dtype of a rule's state, known when a kernel runs, to the C++ type that it is kept in.
#pragma once

#include "runtime/optimizer/rule.hpp"
#include "states.hpp"

namespace narrowcast::inline NC_VARIANT {

// Calls action with a null pointer to float, to Bf16, or to a state format, if the rule is kept in
// any; of a rule that keeps nothing, to float.
template <class Rule, class Action>
NC_MACHINE void with_state(int32_t dtype, const Action& action) {
  if constexpr (KeptInFormats<Rule>) {
    if (dtype >= NC_STATE_FORMAT) return States::with(dtype - NC_STATE_FORMAT, action);
  }
  if constexpr (Rule::kStates > 0) {
    if (dtype == NC_BF16) return action(static_cast<Bf16*>(nullptr));
  }
  action(static_cast<float*>(nullptr));
}

}  // namespace narrowcast::inline NC_VARIANT
