// Four numbers of a row, between memory and a thread of a tile.
#pragma once

#include "runtime/numeric/narrow.hpp"
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

template <class Type>
__device__ __forceinline__ void store_at_once(Type* target, const Four<Type>& four) {
  struct Words {
    uint32_t word[sizeof(four) / sizeof(uint32_t)];
  };
  const auto words = __builtin_bit_cast(Words, four);
  if constexpr (sizeof(four) == 16) {
    store_16_bytes(target, words.word);
  } else {
    static_assert(sizeof(four) == 8);
    store_8_bytes(target, words.word);
  }
}

template <class Type, class Place>
__device__ __forceinline__ void store_four(const Place& place, Type* base, int row,
                                           const Four<Type>& four) {
  Type* target = in_global_memory(base) + place.offset() + row * place.matrix.columns;
  if (Place::kFull || place.has_words) {
    if (place.owns(row, 0)) store_at_once(target, four);
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

}  // namespace narrowcast::inline NC_VARIANT
