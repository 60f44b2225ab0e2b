// What a launch's table says of a tensor, as the sequences take it.
#pragma once

#include <type_traits>

#include "runtime/plugin/table.h"
#include "runtime/tile/buffers.hpp"

namespace narrowcast::inline NC_VARIANT {

template <class Rounding>
NC_EVERYWHERE Rounding rounding_of(const nc_tensor& tensor, const nc_step* step) {
  if constexpr (std::is_same_v<Rounding, Stochastic>) {
    const uint64_t number = step == nullptr ? tensor.step : static_cast<uint64_t>(step->t);
    return {tensor.seed, number, tensor.first};
  } else {
    return {};
  }
}

// A cast writes the amax that it was made with beside the bytes, from the first tile, which every
// tensor has. With delayed amax the history does.
template <class Sequence, class Tile>
NC_EVERYWHERE bool stores_amax(const nc_tensor& tensor, const Tile& tile) {
  return Sequence::kTensorAmax && !Sequence::kDelayedAmax && tensor.amax != nullptr &&
         tile.is_first;
}

// Of encoding: an update goes on to the next one of a delayed scale, a cast makes the present bytes
// again.
template <class Sequence>
NC_EVERYWHERE float multiplier_of(const nc_tensor& tensor, bool update) {
  if constexpr (Sequence::kDelayedAmax)
    return update ? tensor.history->next : tensor.history->present;
  return 1.0f;
}

// `step`: NULL outside an update; `amax`: the launch's, of this tensor.
template <class Sequence, class Rounding>
NC_EVERYWHERE Inputs<Rounding> cast_inputs(const nc_tensor& tensor, const nc_step* step, float amax,
                                           bool update) {
  const bool needs_amax = Sequence::kTensorAmax && !Sequence::kDelayedAmax;
  return {needs_amax ? amax : 0.0f, multiplier_of<Sequence>(tensor, update),
          rounding_of<Rounding>(tensor, step)};
}

// Of decoding. Where an amax is left out, so is the tensor scale that would be made of it.
template <class Sequence>
NC_EVERYWHERE Inputs<> decode_inputs(const nc_tensor& tensor) {
  return {tensor.amax == nullptr ? Sequence::kTensorRange : *tensor.amax};
}

}  // namespace narrowcast::inline NC_VARIANT
