// The step of a run of elements on the CPU, whatever the rule: the one loop around it.
#pragma once

#include <cstdint>

#include "runtime/launch/dtype.hpp"
#include "runtime/optimizer/rule.hpp"
#include "runtime/tile/cpu_data.hpp"

namespace narrowcast::inline NC_VARIANT {

// Where a row of what has a value's shape lies. As integers: of a flat shard the first element of
// the matrix, and of a row, may lie outside its memory.
template <class Type>
NC_MACHINE Type* row_of(const void* first, int64_t offset) {
  return reinterpret_cast<Type*>(reinterpret_cast<uintptr_t>(first) +
                                 static_cast<uintptr_t>(offset) * sizeof(Type));
}

template <class Rule, class Grad, class State>
NC_MACHINE void update_run_of(const nc_tensor& tensor, const nc_step& step_in_memory,
                              int64_t offset, Run own, float* __restrict x) {
  // A copy: no store below can change it, and the compiler knows.
  const nc_step step = step_in_memory;
  const Grad* __restrict grad = row_of<const Grad>(step.grad, offset);
  float* __restrict master = row_of<float>(tensor.value, offset);
  State* state[Rule::kStates];
  for (int k = 0; k < Rule::kStates; ++k) state[k] = row_of<State>(tensor.state[k], offset);
#pragma GCC ivdep  // no two of these arrays overlap
  for (int c = own.begin; c < own.end; ++c) {
    float kept[Rule::kStates];
    for (int k = 0; k < Rule::kStates; ++k) kept[k] = widen(state[k][c]);
    x[c] = master[c] = updated<Rule>(master[c], grad[c], kept, step);
    for (int k = 0; k < Rule::kStates; ++k) state[k][c] = narrow<State>(kept[k]);
  }
}

// Of elements `own` of a row that begins at `offset`: master and state in memory, and the new
// master in x.
template <class Rule>
NC_MACHINE void update_run(const nc_tensor& tensor, const nc_step& step, int64_t offset, Run own,
                           float* x) {
  with_dtype(step.grad_dtype, [&]<class Grad>(Grad*) {
    if (tensor.state_dtype == NC_BF16) {
      update_run_of<Rule, Grad, Bf16>(tensor, step, offset, own, x);
    } else {
      update_run_of<Rule, Grad, float>(tensor, step, offset, own, x);
    }
  });
}

}  // namespace narrowcast::inline NC_VARIANT
