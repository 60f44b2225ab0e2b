// Adam for unquantized parameters on the GPU.
#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_rows.cuh"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int64_t kRun = kThreads * kThreadRows * kThreadColumns;  // elements of a tile

// A whole run is a matrix of kWarpColumns columns.
__device__ __forceinline__ void update_run(const nc_tensor& tensor, const nc_step& step,
                                           int64_t first) {
  using Tile = CudaValues<kWarps, Owned::kAll>;
  const int64_t row = first / kWarpColumns;
  Tile tile({{row + Tile::kRows, kWarpColumns},
             {row, 0},
             {tensor, nc_launch{}, false},
             {0, Tile::kRows},
             /*is_first=*/first == 0,
             /*has_words=*/true});
  if (tensor.parameter == nullptr) return update_tile(tile, tensor, step);
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) { update_tile<Type>(tile, tensor, step); });
  store_value(tile, tensor, tensor.parameter);
}

template <class Grad, class State>
__device__ __forceinline__ void update_element(const nc_tensor& tensor, const nc_step& step,
                                               int64_t i) {
  float* master = static_cast<float*>(tensor.value) + i;
  State* exp_avg = static_cast<State*>(tensor.exp_avg) + i;
  State* exp_avg_sq = static_cast<State*>(tensor.exp_avg_sq) + i;
  const float grad = widen(static_cast<const Grad*>(step.grad)[i]);
  if (tensor.parameter != nullptr) {
    with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
      *master = following(*master, static_cast<const Type*>(tensor.parameter)[i]);
    });
  }
  const AdamElement next = adam({*master, widen(*exp_avg), widen(*exp_avg_sq)}, grad, step);
  *master = next.parameter;
  *exp_avg = narrow<State>(next.exp_avg);
  *exp_avg_sq = narrow<State>(next.exp_avg_sq);
  if (tensor.parameter == nullptr) return;
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    static_cast<Type*>(tensor.parameter)[i] = narrow<Type>(next.parameter);
  });
}

__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ CudaLaunch launch) {
  __shared__ CudaEntry entry;
  if (!load_entry</*kOfTile=*/true>(launch, entry, blockIdx.x)) return;
  const nc_tensor& tensor = entry.tensor;
  const nc_step& step = entry.step;
  const int64_t first = (blockIdx.x - tensor.first_tile) * kRun;
  const uint64_t low_bits =
      reinterpret_cast<uint64_t>(tensor.value) | reinterpret_cast<uint64_t>(tensor.exp_avg) |
      reinterpret_cast<uint64_t>(tensor.exp_avg_sq) | reinterpret_cast<uint64_t>(step.grad) |
      reinterpret_cast<uint64_t>(tensor.parameter);
  if (low_bits % 16 == 0 && first + kRun <= tensor.columns) {
    update_run(tensor, step, first);
    return;
  }
  const int64_t end = first + kRun < tensor.columns ? first + kRun : tensor.columns;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    with_dtype(step.grad_dtype, [&]<class Grad>(Grad*) {
      if (tensor.state_dtype == NC_BF16) {
        update_element<Grad, Bf16>(tensor, step, i);
      } else {
        update_element<Grad, float>(tensor, step, i);
      }
    });
  }
}

const char* update(const nc_launch* launch) {
  return launch_tiles<update_kernel>(launch, kThreads);
}

}  // namespace

const nc_machine& cuda_machine() {
  static constexpr nc_machine kMachine = [] {
    nc_machine machine{};
    machine.tile_rows = machine.step_rows = 1;
    machine.tile_columns = kRun;
    machine.update = update;
    return machine;
  }();
  return kMachine;
}

}  // namespace narrowcast::inline NC_VARIANT
