// The step of unquantized parameters on the CPU; compiled once for each instruction set.
#include <algorithm>

#include "runtime/launch/cpu_loop.hpp"
#include "runtime/launch/cpu_update.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/optimizer/rule_table.hpp"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int64_t kTile = 32768;  // elements
constexpr int kRun = 1024;        // of them, that stay in the first-level cache

template <class Type>
NC_MACHINE void follow_run(const nc_tensor& tensor, int64_t first, int count) {
  float* __restrict master = static_cast<float*>(tensor.value) + first;
  const Type* __restrict parameter = static_cast<const Type*>(tensor.parameter) + first;
  for (int i = 0; i < count; ++i) master[i] = following(master[i], parameter[i]);
}

template <class Type>
NC_MACHINE void round_run(const nc_tensor& tensor, int64_t first, int count,
                          const float* __restrict x) {
  Type* __restrict parameter = static_cast<Type*>(tensor.parameter) + first;
  for (int i = 0; i < count; ++i) parameter[i] = narrow<Type>(x[i]);
}

template <class Rule>
void update_tile(const nc_launch& launch, int64_t tile) {
  const int64_t index = find_tensor(launch, tile);
  const nc_tensor& tensor = launch.tensors[index];
  const nc_step& step = launch.steps[index];
  if (step.grad == nullptr) return;
  const int64_t begin = (tile - tensor.first_tile) * kTile;
  const int64_t end = std::min(begin + kTile, tensor.columns);
  const bool is_rounded = tensor.parameter != nullptr;
  alignas(64) float x[kRun];
  for (int64_t first = begin; first < end; first += kRun) {
    const int count = static_cast<int>(std::min<int64_t>(kRun, end - first));
    if (is_rounded) {
      with_dtype(tensor.value_dtype,
                 [&]<class Type>(Type*) { follow_run<Type>(tensor, first, count); });
    }
    update_run<Rule>(tensor, step, first, {0, count}, x);
    if (!is_rounded) continue;
    with_dtype(tensor.value_dtype,
               [&]<class Type>(Type*) { round_run<Type>(tensor, first, count, x); });
  }
}

struct PlainKernels {
  static constexpr bool kTwoPasses = false;
  template <class Rule>
  static const char* update(const nc_launch* launch) {
    return cpu_for_each_tile<update_tile<Rule>>(launch);
  }
};

}  // namespace

const nc_machine& cpu_machine() {
  static constexpr nc_machine kMachine = [] {
    nc_machine machine{};
    machine.tile_rows = machine.step_rows = 1;
    machine.tile_columns = kTile;
    machine.updates = RuleTable<Rules>::kUpdates<PlainKernels>;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
