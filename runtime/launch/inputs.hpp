// What a launch's table says of a tensor, as the sequences take it.
#pragma once

#include <type_traits>

#include "runtime/plugin/table.h"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Rounding>
NC_EVERYWHERE Rounding rounding_of(const nc_launch& launch, int64_t index,
                                   const nc_tensor& tensor) {
  if constexpr (std::is_same_v<Rounding, Stochastic>) {
    const uint64_t step =
        launch.steps == nullptr ? tensor.step : static_cast<uint64_t>(launch.steps[index].t);
    return {tensor.seed, step, tensor.first};
  } else {
    return {};
  }
}

// A cast writes the amax that it was made with beside the bytes, from the tile that every tensor
// has. With delayed amax the history does.
template <class Sequence>
NC_EVERYWHERE bool stores_amax(const nc_tensor& tensor, Extent origin) {
  return Sequence::kTensorAmax && !Sequence::kDelayedAmax && tensor.amax != nullptr &&
         origin == Extent{0, 0};
}

// Of encoding: an update goes on to the next one of a delayed scale, a cast makes the present bytes
// again.
template <class Sequence>
NC_EVERYWHERE float multiplier_of(const nc_tensor& tensor, bool update) {
  if constexpr (Sequence::kDelayedAmax)
    return update ? tensor.history->next : tensor.history->present;
  return 1.0f;
}

template <class Sequence, class Rounding>
NC_EVERYWHERE Inputs<Rounding> cast_inputs(const nc_launch& launch, int64_t index,
                                           const nc_tensor& tensor, bool update) {
  const bool amax = Sequence::kTensorAmax && !Sequence::kDelayedAmax;
  return {amax ? launch.amax[index] : 0.0f, multiplier_of<Sequence>(tensor, update),
          rounding_of<Rounding>(launch, index, tensor)};
}

}  // namespace narrowcast::inline NC_VARIANT
