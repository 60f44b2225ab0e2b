// The step of unquantized parameters on the GPU.
#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_rows.cuh"
#include "runtime/optimizer/rule_table.hpp"
#include "runtime/tile/cuda_values.cuh"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int64_t kRun = kThreads * kThreadRows * kThreadColumns;  // elements of a tile

// A run is a matrix of kWarpColumns columns, in whose last row some may be missing.
template <class Rule, Owned kOwned>
__device__ __forceinline__ void update_run(const nc_tensor& tensor, const nc_step& step,
                                           int64_t first, bool has_words) {
  using Tile = CudaValues<kWarps, kOwned>;
  const int64_t row = first / kWarpColumns;
  Tile tile({{row + Tile::kRows, kWarpColumns},
             {row, 0},
             {tensor, nc_launch{}, false},
             {0, Tile::kRows},
             /*is_first=*/first == 0,
             has_words});
  if (tensor.parameter == nullptr) return update_tile<Rule>(tile, tensor, step);
  if constexpr (kOwned == Owned::kAll) {
    with_dtype(tensor.value_dtype,
               [&]<class Type>(Type*) { update_tile<Rule, Type>(tile, tensor, step); });
  } else {
    update_cut_rows<Rule, /*kRounds=*/true>(tile, tensor, step);
  }
  store_value(tile, tensor, tensor.parameter);
}

template <class Rule>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ CudaLaunch launch) {
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/true>(launch, entry, blockIdx.x)) return;
  const nc_tensor& tensor = entry.tensor;
  const nc_step& step = entry.step;
  const int64_t first = (blockIdx.x - tensor.first_tile) * kRun;
  const bool in_words = begins_in_words(tensor, step.grad);
  if (in_words && first + kRun <= tensor.columns)
    return update_run<Rule, Owned::kAll>(tensor, step, first, true);
  update_run<Rule, Owned::kSome>(tensor, step, first, in_words && tensor.columns % 4 == 0);
}

struct PlainKernels {
  static constexpr bool kTwoPasses = false;
  template <class Rule>
  static const char* update(const nc_launch* launch) {
    return launch_tiles<update_kernel<Rule>>(launch, kThreads);
  }
};

}  // namespace

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine = [] {
    nc_machine machine{};
    machine.tile_rows = machine.step_rows = 1;
    machine.tile_columns = kRun;
    machine.updates = RuleTable<Rules>::kUpdates<PlainKernels>;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
