// The masters of a thread's four elements of a row, as they lie in memory and as numbers.
#pragma once

#include "runtime/launch/cuda_state.cuh"
#include "runtime/numeric/split_float.hpp"
#include "runtime/tile/cuda_encode.cuh"

namespace narrowcast::inline NC_VARIANT {

// bfloat16, rounded up or down by chance.
struct Drawn {};

// Calls action with a null pointer to float, or if `kNarrow` to what masters of the tensor are
// otherwise: SplitFloat, or Drawn.
template <class Rule, bool kNarrow, class Action>
__device__ __forceinline__ void with_master(const nc_tensor& tensor, const Action& action) {
  if constexpr (kNarrow && KeptInFormats<Rule>) {
    if (tensor.value_dtype == NC_BF16) {
      if (tensor.residual != nullptr) return action(static_cast<SplitFloat*>(nullptr));
      return action(static_cast<Drawn*>(nullptr));
    }
  }
  action(static_cast<float*>(nullptr));
}

// Of floats.
template <class Master>
struct MasterFour {
  Four<Master> four;

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, const nc_tensor& tensor, int row) {
    four = load_four(place, static_cast<const Master*>(tensor.value), row);
  }
  __device__ __forceinline__ float at(int c) const { return widen(four.at[c]); }

  // Takes numbers over. What is left in them is what casts begin with.
  template <class Place>
  __device__ __forceinline__ void take(const Place&, const nc_tensor&, const nc_step&, int,
                                       float (&x)[kThreadColumns]) {
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) four.at[c] = x[c];
  }
  template <class Place>
  __device__ __forceinline__ void store(const Place& place, const nc_tensor& tensor,
                                        int row) const {
    store_four(place, static_cast<Master*>(tensor.value), row, four);
  }
};

template <>
struct MasterFour<Drawn> : MasterFour<Bf16> {
  template <class Place>
  __device__ __forceinline__ void take(const Place& place, const nc_tensor& tensor,
                                       const nc_step& step, int row, float (&x)[kThreadColumns]) {
    const Stochastic rounding = master_rounding(tensor.seed, step.t, tensor.first);
    const PhiloxWords random = random4(rounding, place.offset() + row * place.matrix.columns);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      four.at[c] = narrow_stochastically(x[c], random.word[c]);
      x[c] = widen(four.at[c]);
    }
  }
};

template <>
struct MasterFour<SplitFloat> : MasterFour<Bf16> {
  uint32_t residuals;  // four in a word

  template <class Place>
  __device__ __forceinline__ void load(const Place& place, const nc_tensor& tensor, int row) {
    MasterFour<Bf16>::load(place, tensor, row);
    residuals = load_codes(place, reinterpret_cast<const uint8_t*>(tensor.residual), row);
  }
  __device__ __forceinline__ float at(int c) const {
    return join({four.at[c], static_cast<int8_t>(residuals >> 8 * c)});
  }
  template <class Place>
  __device__ __forceinline__ void take(const Place&, const nc_tensor&, const nc_step&, int,
                                       float (&x)[kThreadColumns]) {
    residuals = 0;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const SplitFloat made = split(x[c]);
      four.at[c] = made.value;
      residuals |= uint32_t{static_cast<uint8_t>(made.residual)} << 8 * c;
      x[c] = widen(made.value);
    }
  }
  template <class Place>
  __device__ __forceinline__ void store(const Place& place, const nc_tensor& tensor,
                                        int row) const {
    MasterFour<Bf16>::store(place, tensor, row);
    store_codes(place, reinterpret_cast<uint8_t*>(tensor.residual), row, residuals);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
