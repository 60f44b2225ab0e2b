// Four codes in a word, one a byte, to four values, by themselves and under their scales: the bits
// of the element's own portable `decode`, in fewer instructions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "runtime/numeric/int8.hpp"
#include "runtime/numeric/narrow.hpp"
#include "runtime/tile/cuda_wider.cuh"

namespace narrowcast::inline NC_VARIANT {

// Small floats become halves first, which hold the values of all of them.
struct FourHalves {
  __half2 pair[2];
};

__device__ __forceinline__ __half2 halves_of(uint32_t bits) {
  return __builtin_bit_cast(__half2_raw, bits);
}

inline constexpr int kHalfBias = 15, kHalfMantissa = 10;
inline constexpr uint32_t kTwice = 0x00010001;  // times a half's bits: in both halves of a word

// With its bits at the ends of a half's fields, a code is a half too small by this power of two,
// subnormals, infinity and NaN included.
template <class Element>
inline constexpr float kAboveHalf = power_of_two(kHalfBias - Element::kBias);

template <class Element>
__device__ __forceinline__ FourHalves decode_to_halves(uint32_t codes) {
  constexpr int kUp = kHalfMantissa - Element::kMantissaBits;
  constexpr uint32_t kMagnitudes = kTwice * (Element::kMagnitude << kUp);
  FourHalves halves;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const uint32_t spread = __byte_perm(codes, 0, pair == 0 ? 0x4140 : 0x4342);
    const uint32_t magnitudes = spread << kUp & kMagnitudes;
    const uint32_t signs = spread << (16 - Element::kBits) & kTwice * 0x8000;
    halves.pair[pair] =
        __hmul2(halves_of(magnitudes | signs), __float2half2_rn(kAboveHalf<Element>));
  }
  return halves;
}
// A half's upper byte.
template <>
__device__ __forceinline__ FourHalves decode_to_halves<E5M2>(uint32_t codes) {
  return {halves_of(__byte_perm(codes, 0, 0x1404)), halves_of(__byte_perm(codes, 0, 0x3424))};
}
#if __CUDA_ARCH__ >= 890
template <>
__device__ __forceinline__ FourHalves decode_to_halves<E4M3>(uint32_t codes) {
  const auto pair = [](uint32_t two) {
    return __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3));
  };
  return {pair(codes & 0xffff), pair(codes >> 16)};
}
#endif

// Every sign moves to the top of its byte, and every mantissa to the top of the wider one.
template <class Element>
__device__ __forceinline__ FourHalves decode_from_wider(uint32_t codes) {
  using Wide = typename WiderElement<Element>::Type;
  constexpr uint32_t kSigns = in_each_byte(Element::kSignBit), kSignUp = 1u << (8 - Element::kBits);
  constexpr uint32_t kUp = 1u << (Wide::kMantissaBits - Element::kMantissaBits);
  FourHalves halves = decode_to_halves<Wide>(codes * kUp + (codes & kSigns) * (kSignUp - kUp));
  for (__half2& pair : halves.pair)
    pair = __hmul2(pair, __float2half2_rn(1.0f / kToLowEnd<Element>));
  return halves;
}

// Whether halves hold all values of an element, and codes become halves in few instructions.
template <class Element>
constexpr bool has_halves() {
  if constexpr (std::is_same_v<Element, E4M3>) {
    return kConvertsTo8Bits;
  } else if constexpr (requires { Element::kBias; }) {
    constexpr bool kIsFinite = Element::kMaxCode == Element::kMagnitude;
    return std::is_same_v<Element, E5M2> || (kIsFinite && Element::kBias <= E5M2::kBias);
  } else {
    return false;
  }
}

template <class Element>
__device__ __forceinline__ void decode4(uint32_t codes, float (&x)[4]) {
  if constexpr (has_halves<Element>()) {
    FourHalves halves;
    if constexpr (HasWider<Element>) {
      halves = decode_from_wider<Element>(codes);
    } else {
      halves = decode_to_halves<Element>(codes);
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float2 wide = __half22float2(halves.pair[pair]);
      x[2 * pair] = wide.x;
      x[2 * pair + 1] = wide.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = Element::decode(codes >> 8 * i & 0xff);
  }
}

// Eight codes of four bits, packed, to values that are too small by kAboveHalf: a shift brings the
// fields of two codes, of which one is in the lower half of the word, to their places in two
// halves.
template <class Element>
__device__ __forceinline__ void decode8_below(uint32_t packed, float (&x)[8]) {
  static_assert(Element::kBits == 4 && has_halves<Element>());
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int up = kHalfMantissa - Element::kMantissaBits - 4 * i;
    const uint32_t shifted = up < 0 ? packed >> -up : packed << up;
    const uint32_t magnitudes = shifted & kTwice * (Element::kMagnitude << (up + 4 * i));
    const uint32_t signs = packed << (12 - 4 * i) & kTwice * 0x8000;
    const float2 wide = __half22float2(halves_of(magnitudes | signs));
    x[i] = wide.x;
    x[i + 4] = wide.y;
  }
}

// A byte without its sign lies in the low bits of 2^23, whose units are 1.
template <int kUnitsPerOne>
__device__ __forceinline__ void decode4_as_integers(uint32_t codes, float (&x)[4]) {
  const uint32_t above = codes ^ 0x80808080;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float sum = float_of(__byte_perm(above, 0x4b000000, 0x7440 + i));
    x[i] = (sum - (8388608.0f + 128.0f)) * (1.0f / kUnitsPerOne);
  }
}
template <>
__device__ __forceinline__ void decode4<Integer8>(uint32_t codes, float (&x)[4]) {
  decode4_as_integers<1>(codes, x);
}
template <>
__device__ __forceinline__ void decode4<MxInteger8>(uint32_t codes, float (&x)[4]) {
  decode4_as_integers<64>(codes, x);
}

// ---- under their scales: code times multiplier, as memory has it ----

// Two values that are products: the GPU's products that are NaN are all 0x7fffffff, which the
// hardware narrows to a NaN.
template <class Value>
__device__ __forceinline__ uint32_t narrow_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t narrow_pair<Bf16>(float low, float high) {
  return __builtin_bit_cast(
      uint32_t, static_cast<__nv_bfloat162_raw>(__float22bfloat162_rn(make_float2(low, high))));
}
template <>
__device__ __forceinline__ uint32_t narrow_pair<F16>(float low, float high) {
  return __builtin_bit_cast(uint32_t,
                            static_cast<__half2_raw>(__float22half2_rn(make_float2(low, high))));
}

// Four products, to as many words as a value has bytes.
template <class Element, class Value>
__device__ __forceinline__ void decode4(uint32_t codes, const float (&multiplier)[4],
                                        uint32_t* words) {
  float x[4];
  decode4<Element>(codes, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] *= multiplier[i];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Value)); ++i) {
    if constexpr (sizeof(Value) == 4) {
      words[i] = bits_of(x[i]);
    } else {
      words[i] = narrow_pair<Value>(x[2 * i], x[2 * i + 1]);
    }
  }
}

}  // namespace narrowcast::inline NC_VARIANT
