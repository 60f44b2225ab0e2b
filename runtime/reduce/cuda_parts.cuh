// Casts and sums of a reduce-scatter on the GPU: a thread has kUnit neighbours of a part, and
// neighbouring threads have a block together.
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
inline constexpr int64_t kElementsOfBlock = kPartThreads * kUnit;  // of a thread block

// A thread's elements of a part.
struct PartUnit {
  int64_t first;
  int count;  // less than kUnit, or none, where the part ends

  __device__ __forceinline__ explicit PartUnit(int64_t elements)
      : first(blockIdx.x * kElementsOfBlock + thread_number() * kUnit) {
    const int64_t left = elements - first;
    count = static_cast<int>(left < 0 ? 0 : left < kUnit ? left : kUnit);
  }
};

// Numbers that memory reads and writes at once.
template <class Type>
struct Sixteen {
  static constexpr int kCount = 16 / sizeof(Type);
  Type at[kCount];
};

// Whether all of a unit can be read or written so. A part that begins at an odd place has none.
template <class Type>
__device__ __forceinline__ bool is_in_words(const PartUnit& unit, const Type* first) {
  return unit.count == kUnit && reinterpret_cast<uintptr_t>(first) % 16 == 0;
}

template <class Type>
__device__ __forceinline__ void load_unit(const PartUnit& unit, const Type* part,
                                          float (&x)[kUnit]) {
  using Words = Sixteen<Type>;
  const Type* first = part + unit.first;
  if (is_in_words(unit, first)) {
#pragma unroll
    for (int w = 0; w < kUnit; w += Words::kCount) {
      const uint4 word = *reinterpret_cast<const uint4*>(first + w);
      const Words numbers = __builtin_bit_cast(Words, word);
#pragma unroll
      for (int i = 0; i < Words::kCount; ++i) x[w + i] = widen(numbers.at[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) x[i] = i < unit.count ? widen(first[i]) : 0.0f;
  }
}

template <class Type>
__device__ __forceinline__ void store_unit(const PartUnit& unit, Type* part,
                                           const float (&x)[kUnit]) {
  using Words = Sixteen<Type>;
  Type* first = part + unit.first;
  if (is_in_words(unit, first)) {
#pragma unroll
    for (int w = 0; w < kUnit; w += Words::kCount) {
      Words numbers;
#pragma unroll
      for (int i = 0; i < Words::kCount; ++i) numbers.at[i] = narrow<Type>(x[w + i]);
      *reinterpret_cast<uint4*>(first + w) = __builtin_bit_cast(uint4, numbers);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (i < unit.count) first[i] = narrow<Type>(x[i]);
    }
  }
}

// The largest magnitude of a unit's block, in all threads that have it. A NaN is kept.
template <int kThreadsOfBlock>
__device__ __forceinline__ float amax_of_block(const float (&x)[kUnit]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) largest = larger_magnitude</*kKeepsNan=*/true>(largest, x[i]);
#pragma unroll
  for (int distance = kThreadsOfBlock / 2; distance > 0; distance /= 2)
    largest = larger_magnitude<true>(largest, __shfl_xor_sync(~0u, largest, distance));
  return largest;
}

// Of four codes, one a byte, those of elements that are there.
__device__ __forceinline__ uint32_t first_codes(uint32_t codes, int count) {
  if (count >= 4) return codes;
  return count <= 0 ? 0 : codes & ((1u << 8 * count) - 1);
}

// By a template argument, which code of the GPU may refer to; a constant of a class it may not.
template <Layout kLayout>
__device__ __forceinline__ PartLayout part_layout(int64_t elements) {
  return {kLayout, elements};
}

template <class Sequence>
struct PartBytes {
  using Stored = typename Sequence::ScaleType::Stored;
  static constexpr Layout kLayout = Sequence::kRowwise;
  static constexpr int kBits = kLayout.element_bits;  // and the bytes of a unit's codes
  static constexpr int kBlock = static_cast<int>(kLayout.block_columns);
  static constexpr int kThreadsOfBlock = kBlock / kUnit;
  static_assert(kThreadsOfBlock <= kWarpSize);

  PartLayout part;
  uint8_t* bytes;

  __device__ __forceinline__ explicit PartBytes(const nc_parts& parts)
      : part(part_layout<kLayout>(parts.elements)), bytes(parts.bytes) {}

  __device__ __forceinline__ uint8_t* of_slot(int64_t slot) const {
    return bytes + slot * part.bytes;
  }
  __device__ __forceinline__ uint8_t* codes(int64_t slot, const PartUnit& unit) const {
    return of_slot(slot) + unit.first / kUnit * kBits;
  }
  __device__ __forceinline__ Stored* scale(int64_t slot, const PartUnit& unit) const {
    return reinterpret_cast<Stored*>(of_slot(slot) + part.scales) + unit.first / kBlock;
  }
};

// ---- the cast: a row of thread blocks for each slot ----

template <class Sequence, class Rounding>
__global__ void __launch_bounds__(kPartThreads)
    cast_parts_kernel(const __grid_constant__ nc_parts parts) {
  using Element = typename Sequence::Element;
  using Bytes = PartBytes<Sequence>;
  constexpr int kFour = 4, kBits = Bytes::kBits;
  const Bytes to(parts);
  const PartUnit unit(parts.elements);
  const int64_t slot = blockIdx.y, rank = rank_of_slot(parts, slot);
  float x[kUnit];
  with_dtype(parts.dtype, [&]<class Type>(Type*) {
    load_unit(unit, static_cast<const Type*>(parts.values) + rank * parts.elements, x);
  });
  // By all threads: lanes wait for each other.
  const float amax = amax_of_block<Bytes::kThreadsOfBlock>(x);
  if (unit.count == 0) return;
  const auto scale = scale_or_nan(typename Sequence::Rule{}, amax, !is_finite(amax));
  Rounding rounding{};
  if constexpr (std::is_same_v<Rounding, Stochastic>)
    rounding = {parts.seed, parts.step, first_number(parts, to.part, rank)};
  uint64_t string = 0;
#pragma unroll
  for (int i = 0; i < kUnit; i += kFour) {
    float scaled[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j) scaled[j] = x[i + j] * scale.multiplier;
    const uint32_t codes =
        first_codes(encode4<Element>(scaled, rounding, unit.first + i), unit.count - i);
    string |= static_cast<uint64_t>(pack4<kBits>(codes)) << i * kBits;
  }
  store_string<kBits>(to.codes(slot, unit), string);
  if (unit.first % Bytes::kBlock == 0) *to.scale(slot, unit) = scale.stored;
  if (unit.first + unit.count == parts.elements) to.part.zero_gaps(to.of_slot(slot));
}

// ---- the sum ----

// Adds what came from the ranks in some slots, in their order. All reads of a batch are on their
// way before the first is waited for.
template <class Sequence>
__device__ __forceinline__ void add_slots(const PartBytes<Sequence>& from, const PartUnit& unit,
                                          int64_t begin, int64_t end, float (&sum)[kUnit]) {
  using Bytes = PartBytes<Sequence>;
  constexpr int kBatch = 4, kFour = 4, kBits = Bytes::kBits;
  for (int64_t first = begin; first < end; first += kBatch) {
    uint64_t strings[kBatch];
    typename Bytes::Stored scales[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b >= end) continue;
      strings[b] = load_string<kBits>(from.codes(first + b, unit));
      scales[b] = *from.scale(first + b, unit);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b >= end) continue;
      const float multiplier = typename Sequence::Decoder{}(scales[b]);
#pragma unroll
      for (int i = 0; i < kUnit; i += kFour) {
        float x[kFour];
        const uint32_t packed = static_cast<uint32_t>(strings[b] >> i * kBits);
        decode4<typename Sequence::Element>(unpack4<kBits>(packed), x);
#pragma unroll
        for (int j = 0; j < kFour; ++j) sum[i + j] += x[j] * multiplier;
      }
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
    load_unit(unit, static_cast<const Type*>(parts.values) + parts.rank * parts.elements, own);
    add_slots(from, unit, 0, parts.rank, sum);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum[i] += own[i];
    add_slots(from, unit, parts.rank, parts.ranks - 1, sum);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) sum[i] = quotient_of(sum[i], parts.divisor);
    store_unit(unit, static_cast<Type*>(parts.sum), sum);
  });
}

template <class Sequence>
struct CudaParts {
  template <void (*kKernel)(const nc_parts)>
  static const char* launch(const nc_parts* parts, int64_t slots) {
    constexpr int64_t kMostSlots = 65535;  // of a grid
    const int64_t blocks = ceil_div(parts->elements, kElementsOfBlock);
    if (blocks == 0 || slots == 0) return nullptr;
    if (blocks > INT32_MAX || slots > kMostSlots)
      return "a part has more elements, or the group more ranks, than a CUDA grid can hold";
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
