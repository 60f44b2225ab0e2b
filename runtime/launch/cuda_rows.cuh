// The step of a tile's elements on the GPU, whatever the rule, and the values that casts begin
// with.
#pragma once

#include <type_traits>

#include "runtime/launch/cuda_master.cuh"
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

// A rule's step of a thread's elements: master and state in memory, and in the tile the new master,
// as MasterFour::take() leaves it. `Rounded`: the type of the parameter that has the master
// rounded; float if there is none. Returns the rows that are as they were, because a warp has
// operands in them that are not ordinary.
template <class Rule, class Grad, class State, class Master, class Rounded, class Tile>
__device__ __forceinline__ Rows update_rows(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  constexpr int kLoaded = RowsOfThread<State>::kLoaded, kTogether = RowsOfThread<State>::kTogether;
  constexpr bool kIsRounded = !std::is_same_v<Rounded, float>;
  const Grad* grad = static_cast<const Grad*>(step.grad);
  Rows left = 0;
#pragma unroll
  for (int first = 0; first < kThreadRows; first += kLoaded) {
    MasterFour<Master> p[kLoaded];
    StateRows<Rule, State, kTogether> state[kLoaded / kTogether];
    Four<Grad> g[kLoaded];
    [[maybe_unused]] Four<Rounded> rounded[kLoaded];
#pragma unroll
    for (int r = 0; r < kLoaded; ++r) {
      if (r % kTogether == 0) state[r / kTogether].load(tile, tensor, first + r);
      p[r].load(tile, tensor, first + r);
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
        auto& x = tile.x[first + r];
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          x[c] = p[r].at(c);
          if constexpr (kIsRounded) x[c] = following(x[c], rounded[r].at[c]);
          x[c] = updated_column<Rule>(x[c], g[r].at[c], kept[i], c, step, arithmetic);
        }
        arithmetic.note(x[0], x[1]);
        arithmetic.note(x[2], x[3]);
        p[r].template take</*kOrdinary=*/true>(tile, tensor, step, first + r, x);
      }
      if (!__all_sync(~0u, arithmetic.were)) {
        left |= ((1u << kTogether) - 1) << (first + row);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) p[row + i].store(tile, tensor, first + row + i);
      StateRows<Rule, State, kTogether>::store(tile, tensor, first + row, kept);
    }
  }
  return left;
}

// The same of `rows`, whatever they hold: where the tile is cut, and where update_rows() has left
// some. Dtypes are looked up row by row: a body for each of their combinations would be most of a
// plugin. `kNarrow`: nc_launch.bf16_masters; `kRounds`: whether a parameter has the master rounded.
template <class Rule, bool kNarrow, bool kRounds, class Tile>
__device__ __forceinline__ void update_any_rows(Tile& tile, const nc_tensor& tensor,
                                                const nc_step& step, Rows rows) {
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    if ((rows >> r & 1) == 0) continue;
    float p[kThreadColumns];
    with_master<kNarrow>(tensor, [&]<class Master>(Master*) {
      MasterFour<Master> four;
      four.load(tile, tensor, r);
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) p[c] = four.at(c);
    });
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
        for (int c = 0; c < kThreadColumns; ++c) p[c] = following(p[c], rounded.at[c]);
      });
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
      p[c] = updated_column<Rule>(p[c], g[c], kept[0], c, step);
    with_master<kNarrow>(tensor, [&]<class Master>(Master*) {
      MasterFour<Master> four;
      four.template take</*kOrdinary=*/false>(tile, tensor, step, r, p);
      four.store(tile, tensor, r);
    });
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) tile.x[r][c] = tile.owns(r, c) ? p[c] : 0.0f;
    with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
      StateRows<Rule, State, 1>::store(tile, tensor, r, kept);
    });
  }
}

// `kNarrow`, `Rounded`: as above. A gradient in float16 is rare, and has no body of its own, nor
// has one in float32 of a bfloat16 master, nor have masters that are drawn: random words would take
// registers from all others.
template <class Rule, bool kNarrow, class Rounded = float, class Tile>
__device__ __forceinline__ void update_tile(Tile& tile, const nc_tensor& tensor,
                                            const nc_step& step) {
  Rows left = ~0u;
  if constexpr (Tile::kFull) {
    with_master<kNarrow>(tensor, [&]<class Master>(Master*) {
      const auto update = [&]<class Grad>(Grad*) {
        with_state<Rule>(tensor.state_dtype, [&]<class State>(State*) {
          left = update_rows<Rule, Grad, State, Master, Rounded>(tile, tensor, step);
        });
      };
      if constexpr (!std::is_same_v<Master, Drawn>) {
        if (step.grad_dtype == NC_BF16) update(static_cast<Bf16*>(nullptr));
      }
      if constexpr (std::is_same_v<Master, float>) {
        if (step.grad_dtype == NC_F32) update(static_cast<float*>(nullptr));
      }
    });
  }
  if (left != 0)
    update_any_rows<Rule, kNarrow, !std::is_same_v<Rounded, float>>(tile, tensor, step, left);
  tile.share_values();
}

}  // namespace narrowcast::inline NC_VARIANT
