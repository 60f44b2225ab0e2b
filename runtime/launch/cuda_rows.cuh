// The step of a tile's elements on the GPU, whatever the rule, and the values that casts begin
// with.
#pragma once

#include <type_traits>

#include "runtime/launch/cuda_state.cuh"
#include "runtime/launch/dtype.hpp"
#include "runtime/launch/state_dtype.hpp"
#include "runtime/numeric/ordinary.hpp"

namespace narrowcast::inline NC_VARIANT {

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

// Rows of a tile, one bit each.
using Rows = unsigned;

// How the rows of a thread are worked through. kLoaded of them are loaded before the first use,
// because loads in flight keep memory busy, and more would cost the registers that keep blocks
// resident; kTogether are computed together, so that results need not wait for each other.
template <class State>
struct RowsOfThread {
  static constexpr int kLoaded = 4, kTogether = 1;
};
template <StateFormat State>
struct RowsOfThread<State> {
  static constexpr int kLoaded = kThreadRows, kTogether = 4;
};

// A rule's step of a thread's elements: master and state in memory, and the new master in the tile.
// `Rounded`: the type of the parameter that has the master rounded; float if there is none. Returns
// the rows that are as they were, because a warp has operands in them that are not ordinary.
template <class Rule, class Grad, class State, class Rounded, class Tile>
__device__ __forceinline__ Rows update_rows(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  constexpr int kLoaded = RowsOfThread<State>::kLoaded, kTogether = RowsOfThread<State>::kTogether;
  constexpr bool kIsRounded = !std::is_same_v<Rounded, float>;
  const Grad* grad = static_cast<const Grad*>(step.grad);
  float* master = static_cast<float*>(tensor.value);
  Rows left = 0;
#pragma unroll
  for (int first = 0; first < kThreadRows; first += kLoaded) {
    Four<float> p[kLoaded];
    StateRows<Rule, State, kTogether> state[kLoaded / kTogether];
    Four<Grad> g[kLoaded];
    [[maybe_unused]] Four<Rounded> rounded[kLoaded];
#pragma unroll
    for (int r = 0; r < kLoaded; ++r) {
      if (r % kTogether == 0) state[r / kTogether].load(tile, tensor, first + r);
      p[r] = load_four(tile, master, first + r);
      g[r] = load_four(tile, grad, first + r);
      if constexpr (kIsRounded)
        rounded[r] = load_four(tile, static_cast<const Rounded*>(tensor.buffer[0]), first + r);
    }
#pragma unroll
    for (int row = 0; row < kLoaded; row += kTogether) {
      Kept<Rule, kTogether> kept;
      state[row / kTogether].widen(tile.lane, kept);
      Ordinary arithmetic;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int r = row + i;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          if constexpr (kIsRounded) p[r].at[c] = following(p[r].at[c], rounded[r].at[c]);
          p[r].at[c] = updated_column<Rule>(p[r].at[c], g[r].at[c], kept[i], c, step, arithmetic);
          tile.x[first + r][c] = p[r].at[c];
        }
        arithmetic.note(p[r].at[0], p[r].at[1]);
        arithmetic.note(p[r].at[2], p[r].at[3]);
      }
      if (!__all_sync(~0u, arithmetic.were)) {
        left |= ((1u << kTogether) - 1) << (first + row);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) store_four(tile, master, first + row + i, p[row + i]);
      StateRows<Rule, State, kTogether>::store(tile, tensor, first + row, kept);
    }
  }
  return left;
}

// The same of `rows`, whatever they hold: where the tile is cut, and where update_rows() has left
// some. Dtypes are looked up row by row: a body for each of their combinations would be most of a
// plugin. `kRounds`: whether a parameter has the master rounded.
template <class Rule, bool kRounds, class Tile>
__device__ __forceinline__ void update_any_rows(Tile& tile, const nc_tensor& tensor,
                                                const nc_step& step, Rows rows) {
  float* master = static_cast<float*>(tensor.value);
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    if ((rows >> r & 1) == 0) continue;
    Four<float> p = load_four(tile, master, r);
    float g[kThreadColumns];
    load_floats(tile, step.grad_dtype, step.grad, r, g);
    Kept<Rule, 1> kept;
    with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
      StateRows<Rule, State, 1> state;
      state.load(tile, tensor, r);
      state.widen(tile.lane, kept);
    });
    if constexpr (kRounds)
      with_dtype(tensor.value_dtype, [&]<class Type>(Type*) {
        const Four<Type> rounded = load_four(tile, static_cast<const Type*>(tensor.buffer[0]), r);
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) p.at[c] = following(p.at[c], rounded.at[c]);
      });
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      p.at[c] = updated_column<Rule>(p.at[c], g[c], kept[0], c, step);
      tile.x[r][c] = tile.owns(r, c) ? p.at[c] : 0.0f;
    }
    store_four(tile, master, r, p);
    with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
      StateRows<Rule, State, 1>::store(tile, tensor, r, kept);
    });
  }
}

// `Rounded`: as in update_rows(). A gradient in float16 is rare, and has no body of its own.
template <class Rule, class Rounded = float, class Tile>
__device__ __forceinline__ void update_tile(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  Rows left = ~0u;
  if constexpr (Tile::kFull) {
    const auto update = [&]<class Grad>(Grad*) {
      with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
        left = update_rows<Rule, Grad, State, Rounded>(tile, tensor, step);
      });
    };
    if (step.grad_dtype == NC_BF16) update(static_cast<Bf16*>(nullptr));
    if (step.grad_dtype == NC_F32) update(static_cast<float*>(nullptr));
  }
  if (left != 0) update_any_rows<Rule, !std::is_same_v<Rounded, float>>(tile, tensor, step, left);
  tile.share_values();
}

}  // namespace narrowcast::inline NC_VARIANT
