// The step of unquantized parameters on the GPU.
#include "runtime/launch/cuda_begin.cuh"
#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_rows.cuh"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/optimizer/rule_table.hpp"
#include "runtime/tile/cuda_values.cuh"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize, kRows = kWarps * kThreadRows;

template <class Rule, Owned kOwned>
__device__ __forceinline__ void update_plain(const nc_tensor& tensor, const nc_step& step,
                                             Extent origin, bool has_words) {
  CudaValues<kWarps, kOwned> tile({{tensor.rows, tensor.columns},
                                   origin,
                                   {tensor, nc_launch{}, false},
                                   {0, kRows},
                                   /*is_first=*/false,
                                   has_words});
  if (tensor.buffer[0] == nullptr) return update_tile<Rule, false>(tile, tensor, step);
  if constexpr (kOwned == Owned::kAll) {
    with_dtype(tensor.value_dtype,
               [&]<class Type>(Type*) { update_tile<Rule, false, Type>(tile, tensor, step); });
  } else {
    update_any_rows<Rule, /*kNarrow=*/false, /*kRounds=*/true>(tile, tensor, step, ~0u);
  }
  store_value(tile, tensor, tensor.buffer[0]);
}

template <class Rule>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ CudaLaunch launch) {
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/true>(launch, entry, blockIdx.x)) return;
  const nc_tensor& tensor = entry.tensor;
  const nc_step& step = entry.step;
  const Extent origin = tile_origin(tensor, blockIdx.x, kRows, kWarpColumns);
  if (is_full(tensor, step.grad, origin, {kRows, kWarpColumns}, /*transposed=*/false))
    return update_plain<Rule, Owned::kAll>(tensor, step, origin, true);
  const bool has_words =
      whole_words(tensor, step.grad, /*transposed=*/false) && tensor.after % 4 == 0;
  update_plain<Rule, Owned::kSome>(tensor, step, origin, has_words);
}

struct PlainKernels : CudaSteps {
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
    machine.tile_rows = machine.step_rows = kRows;
    machine.tile_columns = kWarpColumns;
    machine.updates = RuleTable<Rules>::kUpdates<PlainKernels>;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
