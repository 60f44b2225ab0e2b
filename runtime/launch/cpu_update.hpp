// The step of a run of elements on the CPU, whatever the rule: the one loop around it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/state_dtype.hpp"
#include "runtime/numeric/split_float.hpp"
#include "runtime/tile/cpu_data.hpp"
#include "runtime/tile/cpu_encode.hpp"

namespace narrowcast::inline NC_VARIANT {

// Where a row of what has a value's shape lies. As integers: of a flat shard the first element of
// the matrix, and of a row, may lie outside its memory.
template <class Type>
NC_MACHINE Type* row_of(const void* first, int64_t offset) {
  return reinterpret_cast<Type*>(reinterpret_cast<uintptr_t>(first) +
                                 static_cast<uintptr_t>(offset) * sizeof(Type));
}

// `master`: the masters of a row that begins at `offset`, in memory or widened.
template <class Rule, class Grad, class State>
NC_MACHINE void update_run_of(const nc_tensor& tensor, const nc_step& step_in_memory,
                              int64_t offset, Run own, float* __restrict master,
                              float* __restrict x) {
  // A copy: no store below can change it, and the compiler knows.
  const nc_step step = step_in_memory;
  const Grad* __restrict grad = row_of<const Grad>(step.grad, offset);
  State* state[kRoom<Rule>];
  for (int k = 0; k < Rule::kStates; ++k) state[k] = row_of<State>(tensor.state[k], offset);
#pragma GCC ivdep  // no two of these arrays overlap
  for (int c = own.begin; c < own.end; ++c) {
    float kept[kRoom<Rule>];
    for (int k = 0; k < Rule::kStates; ++k) kept[k] = widen(state[k][c]);
    x[c] = master[c] = updated<Rule>(master[c], grad[c], kept, step);
    for (int k = 0; k < Rule::kStates; ++k) state[k][c] = narrow<State>(kept[k]);
  }
}

// A block of a state, between its codes and numbers.
template <class Code>
NC_MACHINE void decode_block(const uint8_t* __restrict codes, float scale, int count,
                             float* __restrict x) {
  for (int c = 0; c < count; ++c) x[c] = Code::decode_byte(codes[c], scale);
}

template <class Code>
NC_MACHINE void encode_block(const float* __restrict x, int count, uint8_t* __restrict codes,
                             float* scale) {
  uint32_t amax = 0;
  for (int c = 0; c < count; ++c) amax = std::max(amax, magnitude_bits(x[c]));
  const StateScale made = state_scale(amax, Code::kShare);
  for (int c = 0; c < count; ++c)
    codes[c] = static_cast<uint8_t>(Code::encode(x[c], made.multiplier));
  *scale = made.scale;
}

// The same where the state is kept in a format. The run begins with a block.
template <class Rule, class Grad, StateFormat State>
NC_MACHINE void update_run_of(const nc_tensor& tensor, const nc_step& step_in_memory,
                              int64_t offset, Run own, float* masters, float* __restrict x) {
  constexpr int kBlock = State::kBlock;
  const nc_step step = step_in_memory;
  const int64_t blocks = ceil_div(tensor.columns, kBlock);  // of a row
  const int64_t first_block =
      floor_div(offset, tensor.columns) * blocks + offset % tensor.columns / kBlock;
  for (int begin = own.begin; begin < own.end; begin += kBlock) {
    const int count = std::min(kBlock, own.end - begin);
    const Grad* __restrict grad = row_of<const Grad>(step.grad, offset) + begin;
    float* __restrict master = masters + begin;
    const auto codes_of = [&](int k) { return row_of<uint8_t>(tensor.state[k], offset) + begin; };
    const auto scale_of = [&](int k) {
      return row_of<float>(tensor.state_scale[k], first_block) + begin / kBlock;
    };
    alignas(64) float kept[Rule::kStates][kBlock];
    for_each_state<Rule>([&]<int k> {
      decode_block<CodeOfRule<Rule, State, k>>(codes_of(k), *scale_of(k), count, kept[k]);
    });
#pragma GCC ivdep  // no two of these arrays overlap
    for (int c = 0; c < count; ++c)
      x[begin + c] = master[c] = updated_column<Rule>(master[c], grad[c], kept, c, step);
    for_each_state<Rule>([&]<int k> {
      encode_block<CodeOfRule<Rule, State, k>>(kept[k], count, codes_of(k), scale_of(k));
    });
  }
}

// Of elements `own` of a row that begins at `offset`, whose masters are floats: these and the state
// where they lie, and the new masters in x, too.
template <class Rule>
NC_MACHINE void update_floats(const nc_tensor& tensor, const nc_step& step, int64_t offset, Run own,
                              float* master, float* x) {
  with_dtype(step.grad_dtype, [&]<class Grad>(Grad*) {
    with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
      update_run_of<Rule, Grad, State>(tensor, step, offset, own, master, x);
    });
  });
}

// The same where they are bfloat16, with residuals or without. In x are the new bfloat16 values.
template <class Rule>
NC_MACHINE void update_narrow_run(const nc_tensor& tensor, const nc_step& step, int64_t offset,
                                  Run own, float* __restrict x) {
  alignas(64) float master[kLongestRun];
  Bf16* __restrict value = row_of<Bf16>(tensor.value, offset);
  int8_t* __restrict residual = row_of<int8_t>(tensor.residual, offset);
  const bool has_residuals = tensor.residual != nullptr;
  for (int c = own.begin; c < own.end; ++c)
    master[c] = has_residuals ? join({value[c], residual[c]}) : widen(value[c]);
  update_floats<Rule>(tensor, step, offset, own, master, x);
  if (has_residuals) {
    for (int c = own.begin; c < own.end; ++c) {
      const SplitFloat made = split(master[c]);
      value[c] = made.value;
      residual[c] = made.residual;
    }
  } else {
    const Stochastic rounding = master_rounding(tensor.seed, step.t, tensor.first);
    const RandomRun random(rounding, offset + own.begin, own.end - own.begin);
    for (int c = own.begin; c < own.end; ++c)
      value[c] = narrow_stochastically(master[c], random.begin()[c - own.begin]);
  }
  for (int c = own.begin; c < own.end; ++c) x[c] = widen(value[c]);
}

// The same of whichever masters a weight has; in x is what casts begin with.
template <class Rule>
NC_MACHINE void update_run(const nc_tensor& tensor, const nc_step& step, int64_t offset, Run own,
                           float* x) {
  if constexpr (KeptInFormats<Rule>) {
    if (tensor.value_dtype == NC_BF16) return update_narrow_run<Rule>(tensor, step, offset, own, x);
  }
  update_floats<Rule>(tensor, step, offset, own, row_of<float>(tensor.value, offset), x);
}

}  // namespace narrowcast::inline NC_VARIANT
