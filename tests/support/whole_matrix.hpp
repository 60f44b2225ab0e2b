// A whole matrix, cast or updated in one piece: what the owners of its flat shards are to have.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/quantized.hpp"

namespace narrowcast::test {

// What an optimizer has of a matrix; a cast needs its value alone.
struct State {
  std::vector<float> value, exp_avg, exp_avg_sq, grad;
};

// The whole matrix as its owners are to have it, after a cast, with a delayed scale that of an
// update; or after an update by `step`, which changes `state`.
inline Quantized whole_of(const nc_format& format, const nc_machine& machine, Extent matrix,
                          State& state, const nc_launch& options, const nc_history& history,
                          nc_step* step = nullptr) {
  Quantized whole(format, matrix);
  whole.history = history;
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = state.value.data();
  tensor.state[0] = state.exp_avg.data();
  tensor.state[1] = state.exp_avg_sq.data();
  tensor.seed = 7, tensor.step = 3;
  if (step != nullptr) step->grad = state.grad.data();
  whole.connect(format, tensor);
  float amax = 0;
  nc_launch launch = launch_of(machine, &tensor, 1, step, &amax);
  launch.source_bf16 = options.source_bf16;
  launch.stochastic = options.stochastic;
  const auto casting = present({machine.reduce_amax, machine.record_amax, machine.cast});
  REQUIRE(run_all(step == nullptr ? casting : updating(machine), launch) == nullptr);
  return whole;
}

}  // namespace narrowcast::test
