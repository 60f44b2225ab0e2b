// The state formats that a library was compiled with. The build lists them.
//
// A state format is one struct, with kName, kSummary, kReference, kBlock, and the codes of a state
// of both signs (Signed) and of one that is never negative (Nonnegative).
#pragma once

#include <array>

#include "runtime/numeric/narrow.hpp"
#include "runtime/plugin/table.h"
#include "runtime/state/root_code.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Type>
concept StateFormat = requires {
  Type::kBlock;
};

template <class State, bool kNonnegative>
struct CodeOfState {
  using Type = typename State::Signed;
};
template <class State>
struct CodeOfState<State, true> {
  using Type = typename State::Nonnegative;
};
template <class State, bool kNonnegative>
using CodeOf = typename CodeOfState<State, kNonnegative>::Type;

template <class... State>
struct StateList {
  static constexpr std::array<nc_state_format, sizeof...(State)> kFacts = {
      nc_state_format{State::kName,
                      State::kSummary,
                      State::kReference,
                      State::kBlock,
                      {State::kRoots[0], State::kRoots[1]}}...};

  // Calls action with a null pointer to the format with that number.
  template <class Action>
  NC_MACHINE static void with(int32_t number, const Action& action) {
    int32_t at = 0;
    ((number == at++ ? action(static_cast<State*>(nullptr)) : void()), ...);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
