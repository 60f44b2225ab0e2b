// The functions of a plugin's table on the GPU: one thread block a tile, one launch for all
// tensors. `Sequence` is generated.
#pragma once

#include "runtime/launch/cuda_codes.cuh"
#include "runtime/launch/cuda_full.cuh"
#include "runtime/launch/cuda_history.cuh"
#include "runtime/launch/cuda_largest.cuh"
#include "runtime/launch/cuda_rows.cuh"
#include "runtime/launch/cuda_whole.cuh"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/launch/inputs.hpp"

namespace narrowcast::inline NC_VARIANT {

// What a tile's work is, after its place is known. kByRows: whether there is code of its own for
// tiles of which the launch owns whole rows. It makes casts faster, whose time is their
// instructions', and updates slower, whose code is four times as long.
template <class Rounding>
struct CastAction {
  static constexpr bool kCollects = false, kByRows = true;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void cast(Tile& tile, const nc_tensor& tensor,
                                              const nc_step* step, float amax, bool update) {
    const auto in = cast_inputs<Sequence, Rounding>(tensor, step, amax, update);
    if (stores_amax<Sequence>(tensor, tile) && threadIdx.x == 0) *tensor.amax = in.tensor_amax;
    Sequence::cast(tile, in, typename Sequence::TensorBuffers(tensor));
  }
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    load_value(tile, entry.tensor, launch.source_bf16);
    const nc_step* step = launch.steps == nullptr ? nullptr : &entry.step;
    cast<Sequence>(tile, entry.tensor, step, entry.amax, /*update=*/false);
  }
};

struct ReduceAmax {
  // Magnitudes order like their bits, and none is NaN. Most warps find a larger one already there.
  template <class Tile>
  __device__ __forceinline__ static void reduce(const Tile& tile, float* amax) {
    const unsigned largest = bits_of(tile.warp_amax());
    unsigned* shared = reinterpret_cast<unsigned*>(amax);
    if (tile.lane == 0 && largest > *static_cast<volatile unsigned*>(shared))
      atomicMax(shared, largest);
  }
};

template <class Rounding>
struct CollectAction {
  static constexpr bool kCollects = true, kByRows = false;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    load_value(tile, entry.tensor, launch.source_bf16);
    if constexpr (Sequence::kTensorAmax) ReduceAmax::reduce(tile, launch.amax + entry.index);
    if constexpr (Sequence::kDelayedAmax) {
      CastAction<Rounding>::template cast<Sequence>(tile, entry.tensor, nullptr, entry.amax,
                                                    /*update=*/true);
    } else if constexpr (!Tile::kFull) {
      if (tile.part.seams != nullptr) Sequence::collect(tile);
    }
  }
};

template <class Rounding>
struct UpdateAction {
  static constexpr bool kCollects = true, kByRows = false;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    update_tile(tile, entry.tensor, entry.step);
    if constexpr (Sequence::kDelayedAmax) ReduceAmax::reduce(tile, launch.amax + entry.index);
    CastAction<Rounding>::template cast<Sequence>(tile, entry.tensor, &entry.step, entry.amax,
                                                  /*update=*/true);
  }
};

struct UpdateAmaxAction {
  static constexpr bool kCollects = true, kByRows = false;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    update_tile(tile, entry.tensor, entry.step);
    ReduceAmax::reduce(tile, launch.amax + entry.index);
    if constexpr (!Tile::kFull) {
      if (tile.part.seams != nullptr) Sequence::collect(tile);
    }
  }
};

// The tile of a thread block. Some of the last come first: there a flat shard ends, whose edge
// takes longer than other tiles, and nothing would run beside it at the end of a launch.
__device__ __forceinline__ int64_t tile_number(int64_t tiles) {
  constexpr int64_t kAhead = 256;
  const int64_t number = int64_t{blockIdx.x} - (tiles < kAhead ? tiles : kAhead);
  return number < 0 ? number + tiles : number;
}

template <class Sequence, class Action, int kMinBlocks>
__global__ void __launch_bounds__(Sequence::kTileRows / kThreadRows * kWarpSize, kMinBlocks)
    tile_kernel(const __grid_constant__ CudaLaunch parameters) {
  constexpr int kRows = Sequence::kTileRows, kWarps = kRows / kThreadRows;
  __shared__ CudaShared<kWarps> shared;
  __shared__ CudaEntry entry;
  const nc_launch& launch = parameters.launch;
  const int64_t number = tile_number(launch.tiles);
  if (!load_entry</*kOfTile=*/true>(parameters, entry, number)) return;
  const nc_tensor& tensor = entry.tensor;
  const void* grad = launch.steps == nullptr ? nullptr : entry.step.grad;
  const Extent matrix{tensor.rows, tensor.columns};
  const Extent origin = tile_origin(tensor, number, kRows, kWarpColumns);
  const Part part(tensor, launch, Action::kCollects);
  const bool is_first = number == tensor.first_tile;
  const auto run = [&]<Owned kOwned>(TileRows rows, bool has_words) {
    CudaTile<kWarps, kOwned> tile(matrix, origin, part, rows, is_first, has_words, shared);
    Action::template run<Sequence>(tile, launch, entry);
  };
  if (is_full<Sequence>(tensor, grad, origin, kRows, kWarpColumns))
    return run.template operator()<Owned::kAll>({0, kRows}, true);
  const bool in_words = is_in_words<Sequence>(tensor, grad);
  if (Action::kByRows && in_words) {
    const TileRows rows =
        own_rows<kRows, kWarpColumns>(part, matrix, origin, thread_number() % kWarpSize);
    constexpr Owned kOwned = Action::kByRows ? Owned::kRows : Owned::kSome;
    if (rows.end >= 0) return run.template operator()<kOwned>(rows, true);
  }
  run.template operator()<Owned::kSome>({}, in_words && (part.begin | part.end) % 4 == 0);
}

template <class Sequence>
inline constexpr Extent kCastTile{Sequence::kTileRows, kWarpColumns};

template <class Sequence, class Rounding, int kMinBlocks>
__global__ void __launch_bounds__(Sequence::kTileRows / kThreadRows * kWarpSize, kMinBlocks)
    whole_cast_kernel(const __grid_constant__ CudaWhole whole) {
  constexpr int kWarps = Sequence::kTileRows / kThreadRows;
  __shared__ CudaShared<kWarps> shared;
  const nc_launch& launch = whole.launch;
  const nc_tensor& tensor = whole.tensor;
  if (is_stopped(launch)) return;
  CudaTile<kWarps, Owned::kAll> tile(
      {tensor.rows, tensor.columns}, block_origin(kCastTile<Sequence>),
      Part(tensor, launch, /*collects=*/false), {0, Sequence::kTileRows},
      blockIdx.x == 0 && blockIdx.y == 0, /*has_words=*/true, shared);
  load_value(tile, tensor, launch.source_bf16);
  const float amax = launch.amax == nullptr ? 0.0f : *launch.amax;
  CastAction<Rounding>::template cast<Sequence>(tile, tensor, nullptr, amax, /*update=*/false);
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

  static constexpr int64_t kDecodeTileRows = Decoding<Sequence, true>::kTile.rows;
  static constexpr int64_t kDeriveTileRows = Derivation<Sequence>::kTile.rows;

  static const char* reduce_amax(const nc_launch* l) {
    return run_largest<Sequence::kTileRows, kWarpColumns>(l);
  }
  template <class Rounding>
  static const char* run_cast(const nc_launch* launch) {
    if (is_whole(*launch, kCastTile<Sequence>))
      return launch_whole<whole_cast_kernel<Sequence, Rounding, kCastBlocks>>(
          launch, kCastTile<Sequence>, kThreads);
    return run<CastAction<Rounding>, kCastBlocks>(launch);
  }
  static const char* cast(const nc_launch* l) {
    return l->stochastic ? run_cast<Stochastic>(l) : run_cast<Nearest>(l);
  }
  static const char* collect(const nc_launch* l) {
    if constexpr (Sequence::kDelayedAmax) {
      if (l->stochastic) return run<CollectAction<Stochastic>, kCastBlocks>(l);
    }
    return run<CollectAction<Nearest>, kCastBlocks>(l);
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
  static const char* derive_columnwise(const nc_launch* l) { return run_derivation<Sequence>(l); }
  static const char* dequantize_rowwise(const nc_launch* l) {
    return run_decoding<Sequence, false>(l);
  }
  static const char* dequantize_columnwise(const nc_launch* l) {
    return run_decoding<Sequence, true>(l);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
