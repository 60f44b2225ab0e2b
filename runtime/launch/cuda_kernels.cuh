// The functions of a plugin's table on the GPU: one thread block a tile, one launch for all
// tensors. `Sequence` is generated.
#pragma once

#include "runtime/launch/cuda_history.cuh"
#include "runtime/launch/cuda_launch.cuh"
#include "runtime/launch/cuda_rows.cuh"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/launch/inputs.hpp"

namespace narrowcast::inline NC_VARIANT {

// What a tile's work is, after its place is known.
template <class Rounding>
struct CastAction {
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void cast(Tile& tile, const nc_launch& launch, int64_t index,
                                              const nc_tensor& tensor, bool update) {
    const auto in = cast_inputs<Sequence, Rounding>(launch, index, tensor, update);
    if (stores_amax<Sequence>(tensor, tile.origin) && threadIdx.x == 0)
      *tensor.amax = in.tensor_amax;
    Sequence::cast(tile, in, typename Sequence::TensorBuffers(tensor));
  }
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch, int64_t index,
                                             const nc_tensor& tensor) {
    load_value(tile, tensor, launch.source_bf16);
    cast<Sequence>(tile, launch, index, tensor, /*update=*/false);
  }
};

struct ReduceAmaxAction {
  // Magnitudes order like their bits, and none is NaN. Most warps find a larger one already there.
  template <class Tile>
  __device__ __forceinline__ static void reduce(const Tile& tile, float* amax) {
    const unsigned largest = bits_of(tile.warp_amax());
    unsigned* shared = reinterpret_cast<unsigned*>(amax);
    if (tile.lane == 0 && largest > *static_cast<volatile unsigned*>(shared))
      atomicMax(shared, largest);
  }
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch, int64_t index,
                                             const nc_tensor& tensor) {
    load_value(tile, tensor, launch.source_bf16);
    reduce(tile, launch.amax + index);
  }
};

template <class Rounding>
struct UpdateAction {
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch, int64_t index,
                                             const nc_tensor& tensor) {
    update_tile(tile, tensor, launch.steps[index]);
    if constexpr (Sequence::kDelayedAmax) ReduceAmaxAction::reduce(tile, launch.amax + index);
    CastAction<Rounding>::template cast<Sequence>(tile, launch, index, tensor, /*update=*/true);
  }
};

struct UpdateAmaxAction {
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch, int64_t index,
                                             const nc_tensor& tensor) {
    update_tile(tile, tensor, launch.steps[index]);
    ReduceAmaxAction::reduce(tile, launch.amax + index);
  }
};

struct DeriveColumnwiseAction {
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch&, int64_t,
                                             const nc_tensor& tensor) {
    Sequence::derive_columnwise(tile, typename Sequence::TensorBuffers(tensor));
  }
};

template <bool kColumnwise>
struct DequantizeAction {
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch&, int64_t,
                                             const nc_tensor& tensor) {
    const Inputs<> in{tensor.amax == nullptr ? 0.0f : *tensor.amax};
    if constexpr (kColumnwise) {
      Sequence::decode_columnwise(tile, in, typename Sequence::TensorBuffers(tensor));
    } else {
      Sequence::decode_rowwise(tile, in, typename Sequence::TensorBuffers(tensor));
    }
    store_value(tile, tensor, tensor.value);
  }
};

// Whether every access to the tile may be a whole word.
template <class Sequence>
__device__ __forceinline__ bool is_full(const nc_tensor& t, const void* grad, Extent origin,
                                        int rows, int columns) {
  constexpr bool kTransposed = Sequence::kRowwise.transposed || Sequence::kColumnwise.transposed;
  const uint64_t low_bits =
      reinterpret_cast<uint64_t>(t.value) | reinterpret_cast<uint64_t>(t.exp_avg) |
      reinterpret_cast<uint64_t>(t.exp_avg_sq) | reinterpret_cast<uint64_t>(grad) |
      reinterpret_cast<uint64_t>(t.buffer[0]) | reinterpret_cast<uint64_t>(t.buffer[1]) |
      reinterpret_cast<uint64_t>(t.buffer[2]) | reinterpret_cast<uint64_t>(t.buffer[3]) |
      static_cast<uint64_t>(t.columns) | (kTransposed ? static_cast<uint64_t>(t.rows) : 0);
  return low_bits % 16 == 0 && origin.rows + rows <= t.rows &&
         origin.columns + columns <= t.columns;
}

template <class Sequence, class Action, int kMinBlocks>
__global__ void __launch_bounds__(Sequence::kTileRows / kThreadRows * kWarpSize, kMinBlocks)
    tile_kernel(const __grid_constant__ nc_launch launch) {
  constexpr int kWarps = Sequence::kTileRows / kThreadRows;
  __shared__ CudaShared<kWarps> shared;
  if (launch.found_inf != nullptr && *launch.found_inf != 0) return;
  const int64_t index = find_tensor(launch, blockIdx.x);
  const nc_tensor tensor = launch.tensors[index];
  const void* grad = launch.steps == nullptr ? nullptr : launch.steps[index].grad;
  if (launch.steps != nullptr && grad == nullptr) return;
  const Extent matrix{tensor.rows, tensor.columns};
  const Extent origin = tile_origin(tensor, blockIdx.x, kWarps * kThreadRows, kWarpColumns);
  if (is_full<Sequence>(tensor, grad, origin, kWarps * kThreadRows, kWarpColumns)) {
    CudaTile<kWarps, true> tile(matrix, origin, shared);
    Action::template run<Sequence>(tile, launch, index, tensor);
  } else {
    CudaTile<kWarps, false> tile(matrix, origin, shared);
    Action::template run<Sequence>(tile, launch, index, tensor);
  }
}

template <class Sequence>
struct CudaKernels {
  static constexpr int kThreads = Sequence::kTileRows / kThreadRows * kWarpSize;
  // A cast does little for each byte, so it needs many warps to keep memory busy; an update needs
  // its registers more.
  static constexpr int kCastBlocks = 1024 / kThreads, kUpdateBlocks = 512 / kThreads;

  template <class Action, int kMinBlocks>
  static const char* run(const nc_launch* launch) {
    return launch_tiles<tile_kernel<Sequence, Action, kMinBlocks>>(launch, kThreads);
  }

  static const char* reduce_amax(const nc_launch* l) {
    return run<ReduceAmaxAction, kCastBlocks>(l);
  }
  static const char* cast(const nc_launch* l) {
    return l->stochastic ? run<CastAction<Stochastic>, kCastBlocks>(l)
                         : run<CastAction<Nearest>, kCastBlocks>(l);
  }
  static const char* update(const nc_launch* l) {
    return l->stochastic ? run<UpdateAction<Stochastic>, kUpdateBlocks>(l)
                         : run<UpdateAction<Nearest>, kUpdateBlocks>(l);
  }
  static const char* update_amax(const nc_launch* l) {
    return run<UpdateAmaxAction, kUpdateBlocks>(l);
  }
  static const char* start_history(const nc_launch* l) { return run_history<Sequence, true>(l); }
  static const char* record_amax(const nc_launch* l) { return run_history<Sequence, false>(l); }
  static const char* derive_columnwise(const nc_launch* l) {
    return run<DeriveColumnwiseAction, kCastBlocks>(l);
  }
  static const char* dequantize_rowwise(const nc_launch* l) {
    return run<DequantizeAction<false>, kCastBlocks>(l);
  }
  static const char* dequantize_columnwise(const nc_launch* l) {
    return run<DequantizeAction<true>, kCastBlocks>(l);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
