// What a rule keeps of some rows' elements, between memory and a thread of a tile: numbers, or
// codes under the scales of blocks, which lie along rows, in neighbouring lanes.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/cuda_four.cuh"
#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT {

// Numbers of a thread's elements, by row, state and column.
template <class Rule, int kRows>
using Kept = float[kRows][kRoom<Rule>][kThreadColumns];

// A thread's part of kRows rows, as it is stored. All functions are called by a whole warp.
template <class Rule, class State, int kRows>
struct StateRows {
  Four<State> four[kRows][kRoom<Rule>];

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, const nc_tensor& tensor, int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < Rule::kStates; ++k)
        four[r][k] = load_four(place, static_cast<const State*>(tensor.state[k]), first + r);
    }
  }

  __device__ __forceinline__ void widen(int, Kept<Rule, kRows>& kept) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < Rule::kStates; ++k) widen_four(four[r][k], kept[r][k]);
    }
  }

  template <class Place>
  __device__ __forceinline__ static void store(const Place& place, const nc_tensor& tensor,
                                               int first, const Kept<Rule, kRows>& kept) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < Rule::kStates; ++k) {
        Four<State> narrowed;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) narrowed.at[c] = narrow<State>(kept[r][k][c]);
        store_four(place, static_cast<State*>(tensor.state[k]), first + r, narrowed);
      }
    }
  }
};

// Codes of a thread's four elements of a row, in a word.
template <class Place>
__device__ __forceinline__ uint32_t load_codes(const Place& place, const uint8_t* base, int row) {
  const uint8_t* source = in_global_memory(base) + place.offset() + row * place.matrix.columns;
  if constexpr (Place::kFull) return *reinterpret_cast<const uint32_t*>(source);
  uint32_t word = 0;
  if (place.has_words) {
    if (place.owns(row, 0)) word = *reinterpret_cast<const uint32_t*>(source);
    return word;
  }
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    if (place.owns(row, c)) word |= uint32_t{source[c]} << 8 * c;
  }
  return word;
}

template <class Place>
__device__ __forceinline__ void store_codes(const Place& place, uint8_t* base, int row,
                                            uint32_t word) {
  uint8_t* target = in_global_memory(base) + place.offset() + row * place.matrix.columns;
  if constexpr (Place::kFull) {
    *reinterpret_cast<uint32_t*>(target) = word;
  } else if (place.has_words) {
    if (place.owns(row, 0)) *reinterpret_cast<uint32_t*>(target) = word;
  } else {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if (place.owns(row, c)) target[c] = static_cast<uint8_t>(word >> 8 * c);
    }
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

// The lanes of a block share out its scales, those of kRows rows and all states: each reads or
// makes one, and shows it to the others.
template <class Rule, StateFormat State, int kRows>
struct StateRows<Rule, State, kRows> {
  static constexpr int kStates = Rule::kStates, kScales = kRows * kStates;
  static constexpr int kLanes = State::kBlock / kThreadColumns;  // of a block
  static_assert(kWarpSize % kLanes == 0 && kScales <= kLanes);

  uint32_t codes[kRows][kStates];  // four in a word
  float scale;                     // this lane's

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, const nc_tensor& tensor, int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kStates; ++k)
        codes[r][k] = load_codes(place, static_cast<const uint8_t*>(tensor.state[k]), first + r);
    }
    const float* source = scale_at(place, tensor, first);
    scale = source == nullptr ? 0.0f : *source;
  }

  __device__ __forceinline__ void widen(int lane, Kept<Rule, kRows>& kept) const {
    // Thread blocks have one dimension, which the compiler does not know. Known, the sum would take
    // a register anew for each use: an instruction has room for one constant, the choice of bytes.
    const uint32_t carrier = kCarrier + threadIdx.y;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for_each_state<Rule>([&]<int k> {
        using Code = CodeOfRule<Rule, State, k>;
        const float of_block = shown(lane, scale, r * kStates + k);
        const uint32_t word = codes[r][k] ^ Code::kFlipped * 0x01010101u;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
          kept[r][k][c] = Code::decode(__byte_perm(word, carrier, 0x7650 + c), of_block);
      });
    }
  }

  template <class Place>
  __device__ __forceinline__ static void store(const Place& place, const nc_tensor& tensor,
                                               int first, const Kept<Rule, kRows>& kept) {
    const int own = scale_of_lane(place.lane);
    uint32_t amax = 0;
    float share = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for_each_state<Rule>([&]<int k> {
        // Floats without signs are in the order of their bits, NaN above all.
        uint32_t largest = 0;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c)
          largest = larger(largest, Rule::kNonnegative[k] ? bits_of(kept[r][k][c])
                                                          : magnitude_bits(kept[r][k][c]));
        largest = largest_of_lanes<kLanes>(largest);
        if (own == r * kStates + k) {
          amax = largest;
          share = CodeOfRule<Rule, State, k>::kShare;
        }
      });
    }
    const StateScale made = state_scale(amax, share);
    float* target = scale_at(place, tensor, first);
    if (target != nullptr && place.lane % kLanes < kScales) *target = made.scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for_each_state<Rule>([&]<int k> {
        using Code = CodeOfRule<Rule, State, k>;
        const float multiplier = shown(place.lane, made.multiplier, r * kStates + k);
        uint32_t code[kThreadColumns];
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) code[c] = Code::encode(kept[r][k][c], multiplier);
        const uint32_t word = __byte_perm(__byte_perm(code[0], code[1], 0x0040),
                                          __byte_perm(code[2], code[3], 0x0040), 0x5410);
        store_codes(place, static_cast<uint8_t*>(tensor.state[k]), first + r, word);
      });
    }
  }

 private:
  // Scales are numbered row by row.
  __device__ __forceinline__ static int scale_of_lane(int lane) { return lane % kLanes % kScales; }
  __device__ __forceinline__ static float shown(int lane, float of_lane, int number) {
    return __shfl_sync(~0u, of_lane, lane - lane % kLanes + number);
  }

  // Where the scale of a lane lies; null if no element of its block is the launch's own.
  template <class Place>
  __device__ __forceinline__ static float* scale_at(const Place& place, const nc_tensor& tensor,
                                                    int first) {
    const int own = scale_of_lane(place.lane), row = first + own / kStates;
    const int64_t block = place.column() / State::kBlock;
    if (!place.owns_at(row, block * State::kBlock)) return nullptr;
    float* scales = tensor.state_scale[0];
    if constexpr (kStates > 1) scales = own % kStates == 0 ? scales : tensor.state_scale[1];
    return in_global_memory(scales) +
           (place.row() + row) * ceil_div(place.matrix.columns, State::kBlock) + block;
  }
};

}  // namespace narrowcast::inline NC_VARIANT
