// What a tile's work is, after its place is known.
#pragma once

#include "runtime/launch/cuda_entry.cuh"
#include "runtime/launch/cuda_rows.cuh"
#include "runtime/launch/inputs.hpp"

namespace narrowcast::inline NC_VARIANT {

// kCasts: whether it leaves codes and scales in the tile's strip. kByStrips: whether a thread block
// may go through all tiles of a strip; and whether there is code of its own for tiles of which the
// launch owns whole rows. Both make casts faster, which have little to do for each byte, and
// updates slower, whose code is four times as long. kKeepsNonfinite: nc_launch.keep_nonfinite.
// kHasResiduals: whether tensors may have residuals.
template <class Rounding, bool kKeeps = false>
struct CastAction {
  static constexpr bool kCollects = false, kByStrips = true, kKeepsNonfinite = kKeeps;
  static constexpr bool kHasResiduals = false;
  template <class Sequence>
  static constexpr bool kCasts = true;
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

// Where a scale spans the tensor; elsewhere collect_kernel (cuda_collect.cuh) does less.
template <class Rounding>
struct CollectAction {
  static constexpr bool kCollects = true, kByStrips = false, kKeepsNonfinite = false;
  static constexpr bool kHasResiduals = false;
  template <class Sequence>
  static constexpr bool kCasts = Sequence::kDelayedAmax;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    load_value(tile, entry.tensor, launch.source_bf16);
    ReduceAmax::reduce(tile, launch.amax + entry.index);
    if constexpr (Sequence::kDelayedAmax) {
      CastAction<Rounding>::template cast<Sequence>(tile, entry.tensor, nullptr, entry.amax,
                                                    /*update=*/true);
    } else if constexpr (!Tile::kFull) {
      if (tile.part.seams != nullptr) Sequence::collect(tile);
    }
  }
};

// `kNarrow`: nc_launch.bf16_masters. Such updates are kernels of their own, because both kinds of
// masters in one made steps of floats a hundredth slower.
template <class Rule, class Rounding, bool kNarrow>
struct UpdateAction {
  static constexpr bool kCollects = true, kByStrips = false, kKeepsNonfinite = false;
  static constexpr bool kHasResiduals = kNarrow;
  template <class Sequence>
  static constexpr bool kCasts = true;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    update_tile<Rule, kNarrow>(tile, entry.tensor, entry.step);
    if constexpr (Sequence::kDelayedAmax) ReduceAmax::reduce(tile, launch.amax + entry.index);
    CastAction<Rounding>::template cast<Sequence>(tile, entry.tensor, &entry.step, entry.amax,
                                                  /*update=*/true);
  }
};

template <class Rule, bool kNarrow>
struct UpdateAmaxAction {
  static constexpr bool kCollects = true, kByStrips = false, kKeepsNonfinite = false;
  static constexpr bool kHasResiduals = kNarrow;
  template <class Sequence>
  static constexpr bool kCasts = false;
  template <class Sequence, class Tile>
  __device__ __forceinline__ static void run(Tile& tile, const nc_launch& launch,
                                             const CudaEntry& entry) {
    update_tile<Rule, kNarrow>(tile, entry.tensor, entry.step);
    ReduceAmax::reduce(tile, launch.amax + entry.index);
    if constexpr (!Tile::kFull) {
      if (tile.part.seams != nullptr) Sequence::collect(tile);
    }
  }
};

}  // namespace narrowcast::inline NC_VARIANT
