// The masters of a thread's four elements of a row, as they lie in memory and as numbers.
#pragma once

#include "runtime/launch/cuda_state.cuh"
#include "runtime/numeric/split_float.hpp"
#include "runtime/tile/cuda_encode.cuh"

namespace narrowcast::inline NC_VARIANT {

// bfloat16, rounded up or down by chance.
struct Drawn {};

// Calls action with a null pointer to float, or if the launch has bf16_masters to what those of the
// tensor are: SplitFloat, or Drawn.
template <bool kNarrow, class Action>
__device__ __forceinline__ void with_master(const nc_tensor& tensor, const Action& action) {
  if constexpr (!kNarrow) {
    action(static_cast<float*>(nullptr));
  } else if (tensor.residual != nullptr) {
    action(static_cast<SplitFloat*>(nullptr));
  } else {
    action(static_cast<Drawn*>(nullptr));
  }
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

  // Takes numbers over, of which if `kOrdinary` none is NaN. What is left in them is what casts
  // begin with.
  template <bool kOrdinary, class Place>
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
  template <bool kOrdinary, class Place>
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
    // Below the byte is a zero, and above it are copies of its sign, which __byte_perm cannot make.
    uint32_t times_256;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(times_256) : "r"(residuals), "r"(0x8804 | c * 0x1110));
    return join(bits_of(widen(four.at[c])), times_256);
  }
  template <bool kOrdinary, class Place>
  __device__ __forceinline__ void take(const Place&, const nc_tensor&, const nc_step&, int,
                                       float (&x)[kThreadColumns]) {
    uint32_t sum[kThreadColumns];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      sum[c] = split_sum(kOrdinary ? x[c] : splittable(x[c]));
      four.at[c].bits = static_cast<uint16_t>(sum[c] >> 16);
      x[c] = float_of(sum[c] & 0xffff0000);
    }
    const uint32_t bytes = __byte_perm(__byte_perm(sum[0], sum[1], 0x0051),
                                       __byte_perm(sum[2], sum[3], 0x0051), 0x5410);
    residuals = bytes ^ 0x80808080;
  }
  template <class Place>
  __device__ __forceinline__ void store(const Place& place, const nc_tensor& tensor,
                                        int row) const {
    MasterFour<Bf16>::store(place, tensor, row);
    store_codes(place, reinterpret_cast<uint8_t*>(tensor.residual), row, residuals);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
