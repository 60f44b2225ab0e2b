// What a rule keeps of a row's elements, between memory and a thread of a tile: numbers, or codes
// under the scale of a block, whose lanes find its amax together.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/cuda_four.cuh"
#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT {

// Of a thread, as it is stored.
template <class State>
struct StateRow {
  Four<State> four;
};
template <StateFormat State>
struct StateRow<State> {
  Four<uint8_t> code;
  float scale;
};

template <class State>
inline constexpr int kBlockLanes = State::kBlock / kThreadColumns;

// The scale of the block that has a thread's elements of a row.
template <class State, class Place>
__device__ __forceinline__ float* scale_of(const Place& place, const nc_tensor& tensor, int k,
                                           int row) {
  static_assert(kWarpColumns % State::kBlock == 0);
  const int64_t blocks = ceil_div(place.matrix.columns, State::kBlock);
  return in_global_memory(tensor.state_scale[k]) + (place.row() + row) * blocks +
         place.column() / State::kBlock;
}

template <class State, class Place>
__device__ __forceinline__ StateRow<State> load_state(const Place& place, const nc_tensor& tensor,
                                                      int k, int row) {
  if constexpr (StateFormat<State>) {
    const Four<uint8_t> code = load_four(place, static_cast<const uint8_t*>(tensor.state[k]), row);
    const float scale = place.owns(row, 0) ? *scale_of<State>(place, tensor, k, row) : 0.0f;
    return {code, scale};
  } else {
    return {load_four(place, static_cast<const State*>(tensor.state[k]), row)};
  }
}

template <class Rule, int k, class State>
__device__ __forceinline__ void widen_state(const StateRow<State>& row,
                                            float (&x)[kThreadColumns]) {
  if constexpr (StateFormat<State>) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
      x[c] = CodeOfRule<Rule, State, k>::decode(row.code.at[c], row.scale);
  } else {
    widen_four(row.four, x);
  }
}

// The largest bits in some neighbouring lanes of a warp, in all of them.
template <int kLanes>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t bits) {
  if constexpr (kLanes == kWarpSize) {
    return __reduce_max_sync(~0u, bits);
  } else {
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2)
      bits = larger(bits, __shfl_xor_sync(~0u, bits, lanes));
    return bits;
  }
}

// By a whole warp. What is not its own is zero in `x`.
template <class Rule, class State, int k, class Place>
__device__ __forceinline__ void store_state(const Place& place, const nc_tensor& tensor, int row,
                                            const float (&x)[kThreadColumns]) {
  if constexpr (StateFormat<State>) {
    using Code = CodeOfRule<Rule, State, k>;
    uint32_t amax = 0;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) amax = larger(amax, magnitude_bits(x[c]));
    const StateScale made = Code::scale_of(largest_of_lanes<kBlockLanes<State>>(amax));
    Four<uint8_t> code;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) code.at[c] = Code::encode(x[c], made.multiplier);
    store_four(place, static_cast<uint8_t*>(tensor.state[k]), row, code);
    if (place.lane % kBlockLanes<State> == 0 && place.owns(row, 0))
      *scale_of<State>(place, tensor, k, row) = made.scale;
  } else {
    Four<State> four;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) four.at[c] = narrow<State>(x[c]);
    store_four(place, static_cast<State*>(tensor.state[k]), row, four);
  }
}

}  // namespace narrowcast::inline NC_VARIANT
