// Casts and sums of a reduce-scatter on the GPU: a thread has a unit of a part, and neighbouring
// threads have a block together.
#pragma once

#include "runtime/launch/dtype.hpp"
#include "runtime/reduce/part.hpp"
#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_blocks.cuh"
#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_decode.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_string.cuh"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kPartThreads = 256;
inline constexpr int kFour = 4;  // elements that are encoded and decoded together

// Of numbers, read and written 16 bytes at once.
template <class Type>
struct alignas(16) Unit {
  Type at[kUnit];
};

// A thread's elements of a part.
struct PartUnit {
  int64_t first;
  int count;  // less than kUnit where the part ends, and none behind it

  __device__ __forceinline__ explicit PartUnit(int64_t elements)
      : first((int64_t{blockIdx.x} * kPartThreads + thread_number()) * kUnit) {
    const int64_t left = elements - first;
    count = static_cast<int>(left < 0 ? 0 : left < kUnit ? left : kUnit);
  }

  // Not of a part that begins at an odd place.
  template <class Type>
  __device__ __forceinline__ bool is_in_words(const Type* numbers) const {
    return count == kUnit && reinterpret_cast<uintptr_t>(numbers) % sizeof(uint4) == 0;
  }

  template <class Type>
  __device__ __forceinline__ void load(const Type* part, float (&x)[kUnit]) const {
    const Type* numbers = part + first;
    Unit<Type> unit{};
    if (is_in_words(numbers)) {
      unit = *reinterpret_cast<const Unit<Type>*>(numbers);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (i < count) unit.at[i] = numbers[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) x[i] = widen(unit.at[i]);
  }

  template <class Type>
  __device__ __forceinline__ void store(Type* part, const float (&x)[kUnit]) const {
    Type* numbers = part + first;
    Unit<Type> unit;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) unit.at[i] = narrow<Type>(x[i]);
    if (is_in_words(numbers)) {
      *reinterpret_cast<Unit<Type>*>(numbers) = unit;
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (i < count) numbers[i] = unit.at[i];
      }
    }
  }
};

// The largest magnitude of a block, in all threads that have it. A NaN is kept.
template <int kBlock>
__device__ __forceinline__ float amax_of_block(const float (&x)[kUnit]) {
  static_assert(kBlock / kUnit <= kWarpSize);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) largest = larger_magnitude</*kKeepsNan=*/true>(largest, x[i]);
#pragma unroll
  for (int distance = kBlock / kUnit / 2; distance > 0; distance /= 2)
    largest = larger_magnitude<true>(largest, __shfl_xor_sync(~0u, largest, distance));
  return largest;
}

// A row of thread blocks for each slot.
template <class Sequence, class Rounding>
__global__ void __launch_bounds__(kPartThreads)
    cast_parts_kernel(const __grid_constant__ nc_parts parts) {
  constexpr int kBits = PartBytes<Sequence>::kBits, kBlock = PartBytes<Sequence>::kBlock;
  const PartBytes<Sequence> to(parts);
  const PartUnit unit(parts.elements);
  const int64_t slot = blockIdx.y, rank = rank_of_slot(parts, slot);
  float x[kUnit];
  with_dtype(parts.dtype, [&]<class Type>(Type*) {
    unit.load(static_cast<const Type*>(parts.values) + rank * parts.elements, x);
  });
  const float amax = amax_of_block<kBlock>(x);  // by all threads: they wait for each other
  if (unit.count == 0) return;
  const auto scale = scale_or_nan(typename Sequence::Rule{}, amax, !is_finite(amax));
  const Rounding rounding = rounding_of<Rounding>(parts);
  const int64_t index = rank * parts.elements + unit.first;
  uint64_t string = 0;
#pragma unroll
  for (int i = 0; i < kUnit; i += kFour) {
    float scaled[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j) scaled[j] = x[i + j] * scale.multiplier;
    const uint32_t codes = encode4<typename Sequence::Element>(scaled, rounding, index + i);
    string |= static_cast<uint64_t>(pack4<kBits>(codes)) << i * kBits;
  }
  store_string<kBits>(to.codes(slot, unit.first), string);
  if (unit.first % kBlock == 0) *to.scale(slot, unit.first) = scale.stored;
  if (unit.first + unit.count == parts.elements) to.zero_gaps(slot);
}

// Adds what came from the ranks in some slots, in their order. Several are read before the first is
// waited for.
template <class Sequence>
__device__ __forceinline__ void add_slots(const PartBytes<Sequence>& from, const PartUnit& unit,
                                          int64_t begin, int64_t end, float (&sum)[kUnit]) {
  constexpr int kBits = PartBytes<Sequence>::kBits;
#pragma unroll 4
  for (int64_t slot = begin; slot < end; ++slot) {
    const uint64_t string = load_string<kBits>(from.codes(slot, unit.first));
    const float multiplier = typename Sequence::Decoder{}(*from.scale(slot, unit.first));
#pragma unroll
    for (int i = 0; i < kUnit; i += kFour) {
      float x[kFour];
      const uint32_t packed = static_cast<uint32_t>(string >> i * kBits);
      decode4<typename Sequence::Element>(unpack4<kBits>(packed), x);
#pragma unroll
      for (int j = 0; j < kFour; ++j) sum[i + j] += x[j] * multiplier;
    }
  }
}

template <class Sequence>
__global__ void __launch_bounds__(kPartThreads)
    add_parts_kernel(const __grid_constant__ nc_parts parts) {
  const PartBytes<Sequence> from(parts);
  const PartUnit unit(parts.elements);
  if (unit.count == 0) return;
  with_dtype(parts.dtype, [&]<class Type>(Type*) {
    float own[kUnit], sum[kUnit] = {};
    unit.load(static_cast<const Type*>(parts.values) + parts.rank * parts.elements, own);
    add_slots(from, unit, 0, parts.rank, sum);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum[i] += own[i];
    add_slots(from, unit, parts.rank, parts.ranks - 1, sum);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum[i] = quotient_of(sum[i], parts.divisor);
    unit.store(static_cast<Type*>(parts.sum), sum);
  });
}

template <class Sequence>
struct CudaParts {
  template <void (*kKernel)(const nc_parts)>
  static const char* launch(const nc_parts* parts, int64_t slots) {
    const int64_t blocks = ceil_div(parts->elements, kPartThreads * kUnit);
    if (blocks == 0 || slots == 0) return nullptr;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slots));
    kKernel<<<grid, kPartThreads, 0, static_cast<cudaStream_t>(parts->stream)>>>(*parts);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }

  static const char* cast(const nc_parts* parts) {
    return parts->stochastic
               ? launch<cast_parts_kernel<Sequence, Stochastic>>(parts, parts->ranks - 1)
               : launch<cast_parts_kernel<Sequence, Nearest>>(parts, parts->ranks - 1);
  }
  static const char* add(const nc_parts* parts) {
    return launch<add_parts_kernel<Sequence>>(parts, 1);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
