// Casts and sums of a reduce-scatter on the GPU: a thread has a run of a part, and neighbouring
// threads have a block together. Instructions bound most of them, so few are spent on an element.
#pragma once

#include "runtime/launch/dtype.hpp"
#include "runtime/reduce/part.hpp"
#include "runtime/tile/buffers.hpp"
#include "runtime/tile/cuda_blocks.cuh"
#include "runtime/tile/cuda_codes.cuh"
#include "runtime/tile/cuda_decode.cuh"
#include "runtime/tile/cuda_encode.cuh"
#include "runtime/tile/cuda_lines.cuh"
#include "runtime/tile/cuda_low_end.cuh"

namespace narrowcast::inline NC_VARIANT {

inline constexpr int kPartThreads = 256;
inline constexpr int kFour = 4;  // elements that are encoded and decoded together

// For each kStep-th number below kCount, which is known when code is compiled.
template <int kCount, int kStep = 1, class Action>
__device__ __forceinline__ void unrolled(const Action& action) {
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) action(i);
}

// A thread's elements of a part.
template <class Type, int kElements>
struct PartRun {
  struct Numbers {
    Type at[kElements];
  };
  struct alignas(16) Words {  // the same, read and written 16 bytes at once
    uint32_t at[sizeof(Numbers) / sizeof(uint32_t)];
  };
  int64_t first;
  int64_t left;  // of the part, from the first on: none where it has ended

  __device__ __forceinline__ explicit PartRun(int64_t elements)
      : first((int64_t{blockIdx.x} * kPartThreads + thread_number()) * kElements),
        left(elements - first) {}

  // Not of a part that begins at an odd place.
  __device__ __forceinline__ bool is_in_words(const Type* numbers) const {
    return left >= kElements && reinterpret_cast<uintptr_t>(numbers) % sizeof(uint4) == 0;
  }

  __device__ __forceinline__ Words load(const void* parts, int64_t begin) const {
    const Type* numbers = static_cast<const Type*>(parts) + begin + first;
    if (is_in_words(numbers)) return *reinterpret_cast<const Words*>(numbers);
    Numbers run;
    unrolled<kElements>([&](int i) { run.at[i] = i < left ? numbers[i] : Type{}; });
    return __builtin_bit_cast(Words, run);
  }
  __device__ __forceinline__ void store(void* part, const Words& words) const {
    Type* numbers = static_cast<Type*>(part) + first;
    if (is_in_words(numbers)) {
      *reinterpret_cast<Words*>(numbers) = words;
    } else {
      const auto run = __builtin_bit_cast(Numbers, words);
      unrolled<kElements>([&](int i) {
        if (i < left) numbers[i] = run.at[i];
      });
    }
  }
};

// The codes of a run, one after the other.
using CodeString = unsigned __int128;

// Of products, by the way of fewest instructions.
template <class Element, class Rounding, int kElements>
__device__ __forceinline__ CodeString encode_run(const float (&x)[kElements],
                                                 const Rounding& rounding, int64_t index) {
  constexpr int kBits = Element::kBits;
  constexpr bool kIsNearest = std::is_same_v<Rounding, Nearest>;
  CodeString string = 0;
  unrolled<kElements, kFour>([&](int i) {
    uint32_t packed;
    if constexpr (IsLowEnd<Element> && kIsNearest) {
      constexpr float kFit = kToLowEnd<Element>;
      packed = pack4<kBits>(
          LowEnd<Element>::encode4(x[i] * kFit, x[i + 1] * kFit, x[i + 2] * kFit, x[i + 3] * kFit));
    } else if constexpr (HasLines<Element> && kIsNearest) {
      LineString<Element> four;
      unrolled<kFour>([&](int j) { four.push(x[i + kFour - 1 - j]); });
      packed = four.packed() & ((1u << kFour * kBits) - 1);
    } else {
      const float four[kFour] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
      packed = pack4<kBits>(encode4<Element>(four, rounding, index + i));
    }
    string |= CodeString{packed} << i * kBits;
  });
  return string;
}

// A row of thread blocks for each slot.
template <class Sequence, class Rounding>
__global__ void __launch_bounds__(kPartThreads)
    cast_parts_kernel(const __grid_constant__ nc_parts parts,
                      const __grid_constant__ PartBytes<Sequence> to) {
  constexpr int kBits = PartBytes<Sequence>::kBits, kBlock = PartBytes<Sequence>::kBlock;
  constexpr int kElements = PartBytes<Sequence>::kRun, kBytes = kElements / kUnit * kBits;
  with_dtype(parts.dtype, [&]<class Type>(Type*) {
    using Run = PartRun<Type, kElements>;
    const Run run(parts.elements);
    const int64_t slot = blockIdx.y, begin = rank_of_slot(parts, slot) * parts.elements;
    const auto own = __builtin_bit_cast(typename Run::Numbers, run.load(parts.values, begin));
    float x[kElements];
    unrolled<kElements>([&](int i) { x[i] = widen(own.at[i]); });
    static_assert(kBlock / kElements <= kWarpSize);
    float amax = 0;  // of the block, in all threads that have it, of which none may be gone; or NaN
    unrolled<kElements>([&](int i) { amax = larger_magnitude</*kKeepsNan=*/true>(amax, x[i]); });
#pragma unroll
    for (int distance = kBlock / kElements / 2; distance > 0; distance /= 2)
      amax = larger_magnitude<true>(amax, __shfl_xor_sync(~0u, amax, distance));
    if (run.left <= 0) return;
    const auto scale = scale_or_nan(typename Sequence::Rule{}, amax, !is_finite(amax));
    unrolled<kElements>([&](int i) { x[i] *= scale.multiplier; });
    const auto string =
        encode_run<typename Sequence::Element>(x, rounding_of<Rounding>(parts), begin + run.first);
    void* codes = __builtin_assume_aligned(to.codes(slot, run.first), kBytes & -kBytes);
    if (run.left > kElements - kUnit) {
      __builtin_memcpy(codes, &string, kBytes);
    } else {
      __builtin_memcpy(codes, &string, kBits);
    }
    if (run.first % kBlock == 0) *to.scale(slot, run.first) = scale.stored;
    if (run.left <= kElements) to.zero_gaps(slot);
  });
}

// Sums divided, as memory has them. The GPU's own conversion makes other NaNs than `narrow`.
template <class Type, int kElements>
__device__ __forceinline__ auto quotients_of(const float (&sum)[kElements], float divisor) {
  using Run = PartRun<Type, kElements>;
  const float inverse = exact_inverse(divisor);
  float quotient[kElements], zero = 0;  // NaN, where a quotient is not finite
  unrolled<kElements>([&](int i) { quotient[i] = sum[i] * inverse; });
  unrolled<kElements>([&](int i) { zero = fused_multiply_add(quotient[i], 0.0f, zero); });
  typename Run::Words words;
  if (zero == 0) {
    if constexpr (sizeof(Type) == 4) {
      unrolled<kElements>([&](int i) { words.at[i] = bits_of(quotient[i]); });
    } else {
      unrolled<kElements, 2>(
          [&](int i) { words.at[i / 2] = narrow_pair<Type>(quotient[i], quotient[i + 1]); });
    }
    return words;
  }
  typename Run::Numbers numbers;
  unrolled<kElements>([&](int i) { numbers.at[i] = narrow<Type>(quotient_of(sum[i], divisor)); });
  return __builtin_bit_cast(typename Run::Words, numbers);
}

// Adds codes under their scale. Of four bits and a power of two a product is exact, so it may be
// fused with the sum, unless the product or the multiplier overflows, or the multiplier is a NaN.
template <class Sequence, bool kMayFuse, int kElements>
__device__ __forceinline__ void add_codes(CodeString string, float multiplier,
                                          float (&sum)[kElements]) {
  using Element = typename Sequence::Element;
  constexpr int kBits = Element::kBits;
  if constexpr (kMayFuse && kBits == 4 && has_halves<Element>() &&
                Sequence::ScaleType::kPowerOfTwo) {
    constexpr float kAbove = kAboveHalf<Element>;
    if (multiplier < power_of_two(127) / kAbove) {
      unrolled<kElements, kUnit>([&](int i) {
        float x[kUnit];
        decode8_below<Element>(static_cast<uint32_t>(string >> i * kBits), x);
        unrolled<kUnit>(
            [&](int j) { sum[i + j] = fused_multiply_add(x[j], multiplier * kAbove, sum[i + j]); });
      });
      return;
    }
  }
  unrolled<kElements, kFour>([&](int i) {
    float x[kFour];
    decode4<Element>(unpack4<kBits>(static_cast<uint32_t>(string >> i * kBits)), x);
    unrolled<kFour>([&](int j) { sum[i + j] += x[j] * multiplier; });
  });
}

// In the order of ranks; kAhead slots are read before the first is waited for. What hides the wait
// is as many threads as registers allow, or, of many slots, as many reads.
template <class Sequence, int kAhead, int kElements>
__global__ void __launch_bounds__(kPartThreads, kAhead == 1 ? 5 : 4)
    add_parts_kernel(const __grid_constant__ nc_parts parts,
                     const __grid_constant__ PartBytes<Sequence> from) {
  constexpr int kBytes = kElements / kUnit * PartBytes<Sequence>::kBits;
  with_dtype(parts.dtype, [&]<class Type>(Type*) {
    constexpr bool kMayFuse = sizeof(Type) < sizeof(float);  // memory bounds sums of float32
    using Run = PartRun<Type, kElements>;
    const Run run(parts.elements);
    if (run.left <= 0) return;
    auto words = run.load(parts.values, parts.rank * parts.elements);
    float sum[kElements] = {};
    const auto add_own = [&] {
      // Kept; the compiler would widen them, and wait for them, before it reads any codes.
      unrolled<sizeof(words) / 4>([&](int i) { asm volatile("" : "+r"(words.at[i])); });
      const auto own = __builtin_bit_cast(typename Run::Numbers, words);
      unrolled<kElements>([&](int i) { sum[i] += widen(own.at[i]); });
    };
    const int slots = static_cast<int>(parts.ranks) - 1, rank = static_cast<int>(parts.rank);
#pragma unroll 1
    for (int begin = 0; begin < slots; begin += kAhead) {
      CodeString string[kAhead] = {};
      typename Sequence::ScaleType::Stored scale[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead && begin + i < slots; ++i) {
        const void* codes = from.codes(begin + i, run.first);
        __builtin_memcpy(&string[i], __builtin_assume_aligned(codes, kBytes & -kBytes), kBytes);
        scale[i] = *from.scale(begin + i, run.first);
      }
#pragma unroll
      for (int i = 0; i < kAhead && begin + i < slots; ++i) {
        if (begin + i == rank) add_own();
        add_codes<Sequence, kMayFuse>(string[i], typename Sequence::Decoder{}(scale[i]), sum);
      }
    }
    if (rank == slots) add_own();
    run.store(parts.sum, quotients_of<Type>(sum, parts.divisor));
  });
}

template <class Sequence>
struct CudaParts {
  static constexpr int kRun = PartBytes<Sequence>::kRun;

  template <void (*kKernel)(const nc_parts, const PartBytes<Sequence>), int kElements = kRun>
  static const char* launch(const nc_parts* parts, int64_t slots) {
    const int64_t blocks = ceil_div(parts->elements, kPartThreads * kElements);
    if (blocks == 0 || slots == 0) return nullptr;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slots));
    const auto stream = static_cast<cudaStream_t>(parts->stream);
    kKernel<<<grid, kPartThreads, 0, stream>>>(*parts, PartBytes<Sequence>(*parts));
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }

  static const char* cast(const nc_parts* parts) {
    return parts->stochastic
               ? launch<cast_parts_kernel<Sequence, Stochastic>>(parts, parts->ranks - 1)
               : launch<cast_parts_kernel<Sequence, Nearest>>(parts, parts->ranks - 1);
  }
  static const char* add(const nc_parts* parts) {
    const bool is_float32 = parts->dtype == NC_F32;
    if (parts->ranks > 2) {
      constexpr int kFew = 4, kMany = PartBytes<Sequence>::kBits <= 4 ? 7 : kFew;
      return is_float32 ? launch<add_parts_kernel<Sequence, kFew, kRun>>(parts, 1)
                        : launch<add_parts_kernel<Sequence, kMany, kRun>>(parts, 1);
    }
    // Of float32 a unit is 32 bytes, so there is enough to read, and more threads have room.
    return is_float32 ? launch<add_parts_kernel<Sequence, 1, kUnit>, kUnit>(parts, 1)
                      : launch<add_parts_kernel<Sequence, 1, kRun>>(parts, 1);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
