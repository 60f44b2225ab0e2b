// The step of unquantized parameters on the CPU; compiled once for each instruction set.
#include <algorithm>

#include "runtime/launch/cpu_loop.hpp"
#include "runtime/launch/cpu_update.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/optimizer/rule_table.hpp"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kColumns = 1024;  // of a tile, whose rows stay in the first-level cache

template <class Type>
NC_MACHINE void follow_run(const nc_tensor& tensor, int64_t first, int count) {
  float* __restrict master = static_cast<float*>(tensor.value) + first;
  const Type* __restrict parameter = static_cast<const Type*>(tensor.buffer[0]) + first;
  for (int i = 0; i < count; ++i) master[i] = following(master[i], parameter[i]);
}

template <class Type>
NC_MACHINE void round_run(const nc_tensor& tensor, int64_t first, int count,
                          const float* __restrict x) {
  Type* __restrict parameter = static_cast<Type*>(tensor.buffer[0]) + first;
  for (int i = 0; i < count; ++i) parameter[i] = narrow<Type>(x[i]);
}

template <class Rule>
void update_tile(const nc_launch& launch, int64_t tile) {
  const int64_t index = find_tensor(launch, tile);
  const nc_tensor& tensor = launch.tensors[index];
  const nc_step& step = launch.steps[index];
  if (step.grad == nullptr) return;
  const Extent origin = tile_origin(tensor, tile, kRows, kColumns);
  const int64_t columns = std::min(kColumns, tensor.columns - origin.columns);
  const int64_t end_row = std::min(origin.rows + kRows, tensor.rows);
  const int64_t end = tensor.rows * tensor.columns - tensor.after;
  const bool is_rounded = tensor.buffer[0] != nullptr;
  alignas(64) float x[kColumns];
  for (int64_t row = origin.rows; row < end_row; ++row) {
    const int64_t first = row * tensor.columns + origin.columns;
    const int count = static_cast<int>(std::min(columns, end - first));
    if (count <= 0) return;
    if (is_rounded) {
      with_dtype(tensor.value_dtype,
                 [&]<class Type>(Type*) { follow_run<Type>(tensor, first, count); });
    }
    float* master = row_of<float>(tensor.value, first);
    update_floats<Rule>(tensor, step, first, {0, count}, master, x);
    if (!is_rounded) continue;
    with_dtype(tensor.value_dtype,
               [&]<class Type>(Type*) { round_run<Type>(tensor, first, count, x); });
  }
}

struct PlainKernels {
  static constexpr bool kTwoPasses = false;
  static constexpr bool kCountsSteps = false;
  template <class Rule>
  static const char* update(const nc_launch* launch) {
    return cpu_for_each_tile<update_tile<Rule>>(launch);
  }
};

}  // namespace

const nc_machine& cpu_machine() {
  static constexpr nc_machine kMachine = [] {
    nc_machine machine{};
    machine.tile_rows = machine.step_rows = kRows;
    machine.tile_columns = kColumns;
    machine.updates = RuleTable<Rules>::kUpdates<PlainKernels>;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
