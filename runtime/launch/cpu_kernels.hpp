// The functions of a plugin's table on the CPU: for each tile, load, perhaps update, cast, store.
// `Sequence` is generated.
#pragma once

#include <atomic>

#include "runtime/launch/cpu_history.hpp"
#include "runtime/launch/cpu_loop.hpp"
#include "runtime/launch/cpu_unchanged.hpp"
#include "runtime/launch/cpu_update.hpp"
#include "runtime/launch/find_tensor.hpp"
#include "runtime/launch/inputs.hpp"
#include "runtime/tile/cpu_tile.hpp"

namespace narrowcast::inline NC_VARIANT {

// The own columns of a tile's row; what is left of it becomes zero.
template <class Tile>
NC_MACHINE Run begin_row(Tile& tile, int r) {
  const Run own = tile.own_columns(r);
  std::fill(tile.x[r], tile.x[r] + own.begin, 0.0f);
  std::fill(tile.x[r] + own.end, tile.x[r] + tile.columns, 0.0f);
  return own;
}

template <class Tile>
NC_MACHINE void load_value(Tile& tile, const nc_tensor& tensor, bool source_bf16) {
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    for (int r = 0; r < tile.rows; ++r) {
      const Run own = begin_row(tile, r);
      const Type* __restrict source = row_of<const Type>(tensor.value, tile.offset(r));
      float* __restrict x = tile.x[r];
      for (int c = own.begin; c < own.end; ++c) x[c] = widen(source[c]);
    }
  });
  if (source_bf16) {
    for (int r = 0; r < tile.rows; ++r) {
      for (int c = 0; c < tile.width; ++c) tile.x[r][c] = round_to_bf16(tile.x[r][c]);
    }
  }
  tile.share_values();
}

template <class Type, class Tile>
NC_MACHINE void store_value(const Tile& tile, void* value) {
  for (int r = 0; r < tile.rows; ++r) {
    Type* __restrict target = static_cast<Type*>(value) + tile.offset(r);
    const float* __restrict x = tile.x[r];
    for (int c = 0; c < tile.columns; ++c) target[c] = narrow<Type>(x[c]);
  }
}

template <class Rule, class Tile>
NC_MACHINE void update_tile(Tile& tile, const nc_tensor& tensor, const nc_step& step) {
  for (int r = 0; r < tile.rows; ++r)
    update_run<Rule>(tensor, step, tile.offset(r), begin_row(tile, r), tile.x[r]);
  tile.share_values();
}

template <class Tile>
NC_MACHINE void reduce_tile_amax(const Tile& tile, float* amax) {
  const float largest = tile.amax();
  std::atomic_ref<float> shared(*amax);
  float seen = shared.load(std::memory_order_relaxed);
  while (!(largest <= seen) && !is_nan(seen) &&
         !shared.compare_exchange_weak(seen, largest, std::memory_order_relaxed)) {
  }
}

template <class Sequence>
struct CpuKernels {
  using Tile = CpuTile<Sequence::kTileRows>;
  static constexpr int64_t kTileRows = Sequence::kTileRows, kStepRows = Sequence::kTileRows;
  static constexpr int64_t kDecodeTileRows[] = {Sequence::kTileRows, Sequence::kTileRows};
  static constexpr int64_t kDeriveTileRows = Sequence::kTileRows;
  static constexpr bool kTwoPasses = Sequence::kTensorAmax && !Sequence::kDelayedAmax;
  static constexpr bool kCountsSteps = false;

  struct Place {
    int64_t index;
    const nc_tensor& tensor;
    Tile tile;
    Place(const nc_launch& launch, int64_t tile_number, bool collects = false)
        : index(find_tensor(launch, tile_number)),
          tensor(launch.tensors[index]),
          tile({tensor.rows, tensor.columns},
               tile_origin(tensor, tile_number, Tile::kRows, Tile::kColumns),
               Part(tensor, launch, collects), tile_number == tensor.first_tile) {}
  };

  template <class Rounding>
  static void cast_tile(const nc_launch& launch, Place& at, bool update) {
    const nc_step* step = launch.steps == nullptr ? nullptr : &launch.steps[at.index];
    constexpr bool kNeedsAmax = Sequence::kTensorAmax && !Sequence::kDelayedAmax;
    const float amax = kNeedsAmax && !update ? launch.amax[at.index] : 0.0f;
    const auto in = cast_inputs<Sequence, Rounding>(at.tensor, step, amax, update);
    if (stores_amax<Sequence>(at.tensor, at.tile)) *at.tensor.amax = in.tensor_amax;
    Sequence::cast(at.tile, in, typename Sequence::TensorBuffers(at.tensor));
  }

  static void reduce_amax_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number);
    load_value(at.tile, at.tensor, launch.source_bf16);
    reduce_tile_amax(at.tile, &launch.amax[at.index]);
  }

  template <class Rounding>
  static void collect_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number, /*collects=*/true);
    load_value(at.tile, at.tensor, launch.source_bf16);
    if constexpr (Sequence::kTensorAmax) reduce_tile_amax(at.tile, &launch.amax[at.index]);
    if constexpr (Sequence::kDelayedAmax) {
      cast_tile<Rounding>(launch, at, /*update=*/true);
    } else if (at.tile.part.seams != nullptr) {
      Sequence::collect(at.tile);
    }
  }

  template <class Rounding>
  static void cast_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number);
    if (without_gradient(launch, at.index) || is_skipped(launch, at.index)) return;
    load_value(at.tile, at.tensor, launch.source_bf16);
    cast_tile<Rounding>(launch, at, /*update=*/false);
  }

  template <class Rule, class Rounding>
  static void update_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number, /*collects=*/true);
    if (without_gradient(launch, at.index)) return;
    update_tile<Rule>(at.tile, at.tensor, launch.steps[at.index]);
    if constexpr (Sequence::kDelayedAmax) reduce_tile_amax(at.tile, &launch.amax[at.index]);
    cast_tile<Rounding>(launch, at, /*update=*/true);
  }

  template <class Rule>
  static void update_amax_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number, /*collects=*/true);
    if (without_gradient(launch, at.index)) return;
    update_tile<Rule>(at.tile, at.tensor, launch.steps[at.index]);
    reduce_tile_amax(at.tile, &launch.amax[at.index]);
    if (at.tile.part.seams != nullptr) Sequence::collect(at.tile);
  }

  static void derive_columnwise_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number);
    Sequence::derive_columnwise(at.tile, typename Sequence::TensorBuffers(at.tensor));
  }

  template <bool kColumnwise>
  static void dequantize_of(const nc_launch& launch, int64_t tile_number) {
    Place at(launch, tile_number);
    const Inputs<> in = decode_inputs<Sequence>(at.tensor);
    if constexpr (kColumnwise) {
      Sequence::decode_columnwise(at.tile, in, typename Sequence::TensorBuffers(at.tensor));
    } else {
      Sequence::decode_rowwise(at.tile, in, typename Sequence::TensorBuffers(at.tensor));
    }
    with_dtype(at.tensor.value_dtype,
               [&]<class Type>(Type*) { store_value<Type>(at.tile, at.tensor.value); });
  }

  static const char* reduce_amax(const nc_launch* l) {
    return cpu_for_each_tile<reduce_amax_of>(l);
  }
  static const char* cast(const nc_launch* l) {
    return l->stochastic ? cpu_for_each_tile<cast_of<Stochastic>>(l)
                         : cpu_for_each_tile<cast_of<Nearest>>(l);
  }
  static const char* collect(const nc_launch* l) {
    if constexpr (Sequence::kDelayedAmax) {
      if (l->stochastic) return cpu_for_each_tile<collect_of<Stochastic>>(l);
    }
    return cpu_for_each_tile<collect_of<Nearest>>(l);
  }
  template <class Rule>
  static const char* update(const nc_launch* l) {
    return l->stochastic ? cpu_for_each_tile<update_of<Rule, Stochastic>>(l)
                         : cpu_for_each_tile<update_of<Rule, Nearest>>(l);
  }
  template <class Rule>
  static const char* update_amax(const nc_launch* l) {
    return cpu_for_each_tile<update_amax_of<Rule>>(l);
  }
  static const char* start_history(const nc_launch* l) {
    return cpu_for_each_tensor<start_history_of<Sequence>>(l);
  }
  static const char* record_amax(const nc_launch* l) {
    return cpu_for_each_tensor<record_amax_of<Sequence>>(l);
  }
  static const char* derive_columnwise(const nc_launch* l) {
    return cpu_for_each_tile<derive_columnwise_of>(l);
  }
  static const char* dequantize_rowwise(const nc_launch* l) {
    return cpu_for_each_tile<dequantize_of<false>>(l);
  }
  static const char* dequantize_columnwise(const nc_launch* l) {
    return cpu_for_each_tile<dequantize_of<true>>(l);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
