// Adam for unquantized parameters on the CPU; compiled once for each instruction set.
#include "runtime/launch/cpu_loop.hpp"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/optimizer/adam.hpp"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int64_t kRun = 32768;  // elements of a tile

template <class Grad, class State>
NC_MACHINE void update_run(const nc_tensor& tensor, const nc_step& step_in_memory, int64_t first,
                           int64_t count) {
  const nc_step step =
      step_in_memory;  // a copy: no store below can change it, and the compiler knows
  const Grad* __restrict grad = static_cast<const Grad*>(step.grad) + first;
  float* __restrict master = static_cast<float*>(tensor.value) + first;
  State* __restrict exp_avg = static_cast<State*>(tensor.exp_avg) + first;
  State* __restrict exp_avg_sq = static_cast<State*>(tensor.exp_avg_sq) + first;
  for (int64_t i = 0; i < count; ++i) {
    const AdamElement next =
        adam({master[i], widen(exp_avg[i]), widen(exp_avg_sq[i])}, widen(grad[i]), step);
    master[i] = next.parameter;
    exp_avg[i] = narrow<State>(next.exp_avg);
    exp_avg_sq[i] = narrow<State>(next.exp_avg_sq);
  }
}

template <class Type>
NC_MACHINE void follow_run(const nc_tensor& tensor, int64_t first, int64_t count) {
  float* __restrict master = static_cast<float*>(tensor.value) + first;
  const Type* __restrict parameter = static_cast<const Type*>(tensor.parameter) + first;
  for (int64_t i = 0; i < count; ++i) master[i] = following(master[i], parameter[i]);
}

template <class Type>
NC_MACHINE void round_run(const nc_tensor& tensor, int64_t first, int64_t count) {
  const float* __restrict master = static_cast<const float*>(tensor.value) + first;
  Type* __restrict parameter = static_cast<Type*>(tensor.parameter) + first;
  for (int64_t i = 0; i < count; ++i) parameter[i] = narrow<Type>(master[i]);
}

void update_tile(const nc_launch& launch, int64_t tile) {
  const int64_t index = find_tensor(launch, tile);
  const nc_tensor& tensor = launch.tensors[index];
  const nc_step& step = launch.steps[index];
  if (step.grad == nullptr) return;
  const int64_t first = (tile - tensor.first_tile) * kRun;
  const int64_t left = tensor.columns - first;
  const int64_t count = left < kRun ? left : kRun;
  const bool is_rounded = tensor.parameter != nullptr;
  if (is_rounded) {
    with_dtype(tensor.value_dtype,
               [&]<class Type>(Type*) { follow_run<Type>(tensor, first, count); });
  }
  with_dtype(step.grad_dtype, [&]<class Grad>(Grad*) {
    if (tensor.state_dtype == NC_BF16) {
      update_run<Grad, Bf16>(tensor, step, first, count);
    } else {
      update_run<Grad, float>(tensor, step, first, count);
    }
  });
  if (!is_rounded) return;
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) { round_run<Type>(tensor, first, count); });
}

}  // namespace

const nc_machine& cpu_machine() {
  static constexpr nc_machine kMachine = [] {
    nc_machine machine{};
    machine.tile_rows = machine.step_rows = 1;
    machine.tile_columns = kRun;
    machine.update = cpu_for_each_tile<update_tile>;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
