// The functions of a plugin's table on the GPU: one launch for all tensors. `Sequence` is
// generated.
#pragma once

#include "runtime/launch/cuda_begin.cuh"
#include "runtime/launch/cuda_codes.cuh"
#include "runtime/launch/cuda_collect.cuh"
#include "runtime/launch/cuda_history.cuh"
#include "runtime/launch/cuda_largest.cuh"
#include "runtime/launch/cuda_tiles.cuh"

namespace narrowcast::inline NC_VARIANT {

template <class Sequence>
struct CudaKernels : CudaSteps {
  static constexpr int kThreads = Sequence::kTileRows / kThreadRows * kWarpSize;
  // A cast does little for each byte, so it needs many warps to keep memory busy; an update needs
  // its registers more.
  static constexpr int kCastBlocks = 1024 / kThreads, kUpdateBlocks = 512 / kThreads;

  template <class Action, int kMinBlocks>
  static const char* run(const nc_launch* launch) {
    return launch_tiles_of<Sequence, Action, kMinBlocks>(launch);
  }

  static constexpr int64_t kTileRows = Sequence::kTileRows * Sequence::kStripTiles;
  static constexpr int64_t kStepRows = Sequence::kTileRows;

  static constexpr int64_t kDecodeTileRows[] = {Decoding<Sequence, false>::kTile.rows,
                                                Decoding<Sequence, true>::kTile.rows};
  static constexpr int64_t kDeriveTileRows = Derivation<Sequence>::kTile.rows;
  static constexpr bool kTwoPasses = Sequence::kTensorAmax && !Sequence::kDelayedAmax;

  // A read needs many blocks, and each of them long stretches: of 8 tiles, however many a strip
  // has.
  static constexpr int kLargestTiles = Sequence::kStripTiles < 8 ? 8 / Sequence::kStripTiles : 1;
  static const char* reduce_amax(const nc_launch* l) {
    return run_largest<kTileRows, kWarpColumns, kLargestTiles>(l);
  }
  template <class Action>
  static const char* run_cast(const nc_launch* launch) {
    if (is_whole(*launch, kCastTile<Sequence>))
      return launch_whole<whole_cast_kernel<Sequence, Action, kCastBlocks>>(
          launch, kCastTile<Sequence>, kThreads);
    return run<Action, kCastBlocks>(launch);
  }
  template <bool kKeeps>
  static const char* run_cast(const nc_launch* l) {
    return l->stochastic ? run_cast<CastAction<Stochastic, kKeeps>>(l)
                         : run_cast<CastAction<Nearest, kKeeps>>(l);
  }
  static const char* cast(const nc_launch* l) {
    if constexpr (!Sequence::kTensorAmax) {
      if (l->keep_nonfinite) return run_cast<true>(l);
    }
    return run_cast<false>(l);
  }
  static const char* collect(const nc_launch* l) {
    if constexpr (!Sequence::kTensorAmax) {
      return launch_tiles<collect_kernel<Sequence>>(l, kCollectThreads);
    } else {
      if constexpr (Sequence::kDelayedAmax) {
        if (l->stochastic) return run<CollectAction<Stochastic>, kCastBlocks>(l);
      }
      return run<CollectAction<Nearest>, kCastBlocks>(l);
    }
  }
  template <class Rule, bool kNarrow>
  static const char* run_update(const nc_launch* l) {
    if constexpr (kTwoPasses)
      return run<UpdateAmaxAction<Rule, kNarrow>, kUpdateBlocks>(l);
    else
      return l->stochastic ? run<UpdateAction<Rule, Stochastic, kNarrow>, kUpdateBlocks>(l)
                           : run<UpdateAction<Rule, Nearest, kNarrow>, kUpdateBlocks>(l);
  }
  template <class Rule>
  static const char* update(const nc_launch* l) {
    if constexpr (KeptInFormats<Rule>) {
      if (l->bf16_masters) return run_update<Rule, /*kNarrow=*/true>(l);
    }
    return run_update<Rule, /*kNarrow=*/false>(l);
  }
  template <class Rule>
  static const char* update_amax(const nc_launch* l) {
    return update<Rule>(l);
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
