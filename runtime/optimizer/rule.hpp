// What the update loops of both machines and a rule (runtime/rules/NAME.hpp) know of each other. A
// rule is one struct, NAME::Rule:
//
//   kName
//   kStates, kStateNames    the numbers that it keeps of each element; there may be none
//   kNonnegative            whether each never is below 0; in rules alone that can be kept in state
//                           formats (runtime/state/), and that update bfloat16 masters
//   kOptionNames, Options   a group's: numbers of float64, in the order of the names
//   Constants               of a step: floats alone, at most NC_CONSTANT_COUNT
//   at_step(options, t)     those of the step with number t, from 1: by the host, or by a GPU that
//                           counts its own steps, so it is arithmetic and power() alone
//   update(p, grad, state, constants, arithmetic)
//                           an element's new value; it changes the state. Roots and quotients:
//                           arithmetic.root(x), arithmetic.quotient(a, b)
#pragma once

#include <utility>

#include "runtime/numeric/float_bits.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/plugin/table.h"
#include "runtime/state/state_list.hpp"

namespace narrowcast::inline NC_VARIANT {

// beta^t by squaring, low bit first: products only, which have the same bits on every machine.
constexpr double power(double beta, int64_t t) {
  double result = 1;
  for (; t > 0; t >>= 1) {
    if (t & 1) result *= beta;
    beta *= beta;
  }
  return result;
}

constexpr float narrowed(double value) { return static_cast<float>(value); }

// The rules that a library was compiled with. The build lists them.
template <class... Rule>
struct RuleList {};

template <class Rule>
NC_EVERYWHERE const typename Rule::Constants& constants_of(const nc_step& step) {
  static_assert(sizeof(typename Rule::Constants) <= sizeof(step.constants),
                "Constants has at most NC_CONSTANT_COUNT floats");
  return reinterpret_cast<const typename Rule::Constants&>(step.constants);
}

template <class Rule>
constexpr int kOptionCount = sizeof(typename Rule::Options) / sizeof(double);

// Writes the constants of the step with number t. `options`: a number for each of the names.
template <class Rule>
NC_EVERYWHERE void make_constants(const double* options, int64_t t, float* constants) {
  typename Rule::Options named;
  for (int i = 0; i < kOptionCount<Rule>; ++i) reinterpret_cast<double*>(&named)[i] = options[i];
  const typename Rule::Constants made = Rule::at_step(named, t);
  for (size_t i = 0; i < sizeof(made) / sizeof(float); ++i)
    constants[i] = reinterpret_cast<const float*>(&made)[i];
}

// Calls action.operator()<k>() for the number k of each state of a rule.
template <class Rule, class Action>
NC_EVERYWHERE void for_each_state(const Action& action) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (action.template operator()<k>(), ...); }
  (std::make_integer_sequence<int, Rule::kStates>{});
}

// Room for what a rule keeps of an element: C++ has no array of nothing.
template <class Rule>
constexpr int kRoom = Rule::kStates > 0 ? Rule::kStates : 1;

template <class Rule>
concept KeptInFormats = requires {
  Rule::kNonnegative;
};

// Of a rule that is kept in formats.
template <class Rule, class State, int k>
using CodeOfRule = CodeOf<State, Rule::kNonnegative[k]>;

// The master of a parameter that has its value rounded: the parameter's, if that was written to.
template <class Type>
NC_EVERYWHERE float following(float master, Type parameter) {
  const float present = widen(parameter);
  return widen(narrow<Type>(master)) == present ? master : present;
}

// The step of one element: its new value, and in `state` what is kept of it.
template <class Rule, class Grad, class Arithmetic = Ieee>
NC_EVERYWHERE float updated(float p, Grad grad, float (&state)[kRoom<Rule>], const nc_step& step,
                            Arithmetic&& arithmetic = {}) {
  return Rule::update(p, widen(grad) * step.grad_multiplier, state, constants_of<Rule>(step),
                      arithmetic);
}

// The same of an element whose numbers stand in column c of `kept`.
template <class Rule, class Grad, int kColumns, class Arithmetic = Ieee>
NC_EVERYWHERE float updated_column(float p, Grad grad, float (&kept)[kRoom<Rule>][kColumns], int c,
                                   const nc_step& step, Arithmetic&& arithmetic = {}) {
  float state[kRoom<Rule>];
  for (int k = 0; k < Rule::kStates; ++k) state[k] = kept[k][c];
  p = updated<Rule>(p, grad, state, step, arithmetic);
  for (int k = 0; k < Rule::kStates; ++k) kept[k][c] = state[k];
  return p;
}

}  // namespace narrowcast::inline NC_VARIANT
