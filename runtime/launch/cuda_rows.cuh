// Rows of plain numbers between memory and a tile: values, and what a rule updates.
#pragma once

#include <type_traits>

#include "runtime/launch/dtype.hpp"
#include "runtime/optimizer/rule.hpp"
#include "runtime/tile/cuda_memory.cuh"
#include "runtime/tile/cuda_tile.cuh"

namespace narrowcast::inline NC_VARIANT {

// A thread's four columns of one row.
template <class Type>
struct alignas(sizeof(Type) * kThreadColumns) Four {
  Type at[kThreadColumns];
};

template <class Type, class Place>
__device__ __forceinline__ Four<Type> load_four(const Place& place, const Type* base, int row) {
  const Type* source = in_global_memory(base) + place.offset() + row * place.matrix.columns;
  if constexpr (Place::kFull) return *reinterpret_cast<const Four<Type>*>(source);
  Four<Type> four{};
  if (place.has_words) {
    if (place.owns(row, 0)) four = *reinterpret_cast<const Four<Type>*>(source);
    return four;
  }
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    if (place.owns(row, c)) four.at[c] = source[c];
  }
  return four;
}

template <class Type, class Place>
__device__ __forceinline__ void store_four(const Place& place, Type* base, int row,
                                           const Four<Type>& four) {
  Type* target = in_global_memory(base) + place.offset() + row * place.matrix.columns;
  if constexpr (Place::kFull) {
    *reinterpret_cast<Four<Type>*>(target) = four;
  } else if (place.has_words) {
    if (place.owns(row, 0)) *reinterpret_cast<Four<Type>*>(target) = four;
  } else {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if (place.owns(row, c)) target[c] = four.at[c];
    }
  }
}

template <class Type>
__device__ __forceinline__ void widen_four(const Four<Type>& four, float (&x)[kThreadColumns]) {
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) x[c] = widen(four.at[c]);
}

// A float32's upper half is its bfloat16, so a word of two needs an instruction for each of them.
template <>
__device__ __forceinline__ void widen_four(const Four<Bf16>& four, float (&x)[kThreadColumns]) {
  const uint2 words = *reinterpret_cast<const uint2*>(&four);
  x[0] = float_of(words.x << 16);
  x[1] = float_of(words.x & 0xffff0000);
  x[2] = float_of(words.y << 16);
  x[3] = float_of(words.y & 0xffff0000);
}

// Numbers of a dtype that is known when the kernel runs.
template <class Place>
__device__ __forceinline__ void load_floats(const Place& place, int32_t dtype, const void* base,
                                            int row, float (&x)[kThreadColumns]) {
  with_dtype(dtype, [&]<class Type>(Type*) {
    widen_four(load_four(place, static_cast<const Type*>(base), row), x);
  });
}

template <class Place>
__device__ __forceinline__ void store_floats(const Place& place, int32_t dtype, void* base, int row,
                                             const float (&x)[kThreadColumns]) {
  with_dtype(dtype, [&]<class Type>(Type*) {
    Four<Type> four;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) four.at[c] = narrow<Type>(x[c]);
    store_four(place, static_cast<Type*>(base), row, four);
  });
}

template <class Tile>
__device__ __forceinline__ void load_value(Tile& tile, const nc_tensor& tensor, bool source_bf16) {
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
    Four<Type> rows[kThreadRows];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r)
      rows[r] = load_four(tile, static_cast<const Type*>(tensor.value), r);
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) widen_four(rows[r], tile.x[r]);
  });
  if (source_bf16) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) tile.x[r][c] = round_to_bf16(tile.x[r][c]);
    }
  }
  tile.share_values();
}

template <class Tile>
__device__ __forceinline__ void store_value(const Tile& tile, const nc_tensor& tensor,
                                            void* value) {
  with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      Four<Type> four;
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) four.at[c] = narrow<Type>(tile.x[r][c]);
      store_four(tile, static_cast<Type*>(value), r, four);
    }
  });
}

// A rule's step of a thread's elements: master and state in memory, and the new master in the tile.
// Rows are loaded in batches before the first use: that many loads in flight keep memory busy, and
// more would cost the registers that keep blocks resident. `Rounded`: the type of the parameter
// that has the master rounded; float if there is none.
template <class Rule, class Grad, class State, class Rounded, class Tile>
__device__ __forceinline__ void update_rows(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  constexpr int kBatch = 4, kStates = Rule::kStates;
  constexpr bool kIsRounded = !std::is_same_v<Rounded, float>;
  const Grad* grad = static_cast<const Grad*>(step.grad);
  float* master = static_cast<float*>(tensor.value);
#pragma unroll
  for (int first = 0; first < kThreadRows; first += kBatch) {
    Four<float> p[kBatch];
    Four<State> state[kBatch][kStates];
    Four<Grad> g[kBatch];
    [[maybe_unused]] Four<Rounded> rounded[kBatch];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      p[r] = load_four(tile, master, first + r);
#pragma unroll
      for (int k = 0; k < kStates; ++k)
        state[r][k] = load_four(tile, static_cast<State*>(tensor.state[k]), first + r);
      g[r] = load_four(tile, grad, first + r);
      if constexpr (kIsRounded)
        rounded[r] = load_four(tile, static_cast<const Rounded*>(tensor.parameter), first + r);
    }
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        if constexpr (kIsRounded) p[r].at[c] = following(p[r].at[c], rounded[r].at[c]);
        float kept[kStates];
#pragma unroll
        for (int k = 0; k < kStates; ++k) kept[k] = widen(state[r][k].at[c]);
        p[r].at[c] = updated<Rule>(p[r].at[c], g[r].at[c], kept, step);
#pragma unroll
        for (int k = 0; k < kStates; ++k) state[r][k].at[c] = narrow<State>(kept[k]);
        tile.x[first + r][c] = p[r].at[c];
      }
      store_four(tile, master, first + r, p[r]);
#pragma unroll
      for (int k = 0; k < kStates; ++k)
        store_four(tile, static_cast<State*>(tensor.state[k]), first + r, state[r][k]);
    }
  }
}

// The same where the tile is cut. Dtypes are looked up row by row: a body for each of their
// combinations would be most of a plugin. `kRounds`: whether a parameter has the master rounded.
template <class Rule, bool kRounds, class Tile>
__device__ __forceinline__ void update_cut_rows(Tile& tile, const nc_tensor& tensor,
                                                const nc_step& step) {
  constexpr int kStates = Rule::kStates;
  float* master = static_cast<float*>(tensor.value);
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    Four<float> p = load_four(tile, master, r);
    float g[kThreadColumns], state[kStates][kThreadColumns];
    load_floats(tile, step.grad_dtype, step.grad, r, g);
#pragma unroll
    for (int k = 0; k < kStates; ++k)
      load_floats(tile, tensor.state_dtype, tensor.state[k], r, state[k]);
    if constexpr (kRounds)
      with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
        const Four<Type> rounded = load_four(tile, static_cast<const Type*>(tensor.parameter), r);
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) p.at[c] = following(p.at[c], rounded.at[c]);
      });
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      float kept[kStates];
#pragma unroll
      for (int k = 0; k < kStates; ++k) kept[k] = state[k][c];
      p.at[c] = updated<Rule>(p.at[c], g[c], kept, step);
#pragma unroll
      for (int k = 0; k < kStates; ++k) state[k][c] = kept[k];
      tile.x[r][c] = tile.owns(r, c) ? p.at[c] : 0.0f;
    }
    store_four(tile, master, r, p);
#pragma unroll
    for (int k = 0; k < kStates; ++k)
      store_floats(tile, tensor.state_dtype, tensor.state[k], r, state[k]);
  }
}

template <class Rule, class Rounded = float, class Tile>
__device__ __forceinline__ void update_tile(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  if constexpr (!Tile::kFull) {
    update_cut_rows<Rule, /*kRounds=*/false>(tile, tensor, step);
  } else {
    with_dtype(step.grad_dtype, [&]<class Grad>(Grad*) {
      if (tensor.state_dtype == NC_BF16) {
        update_rows<Rule, Grad, Bf16, Rounded>(tile, tensor, step);
      } else {
        update_rows<Rule, Grad, float, Rounded>(tile, tensor, step);
      }
    });
  }
  tile.share_values();
}

}  // namespace narrowcast::inline NC_VARIANT
