// Products and their tensors' scales on the GPU: a thread reads 32 bytes and writes up to as many.
#include <cuda_runtime_api.h>

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/dtype.hpp"
#include "runtime/products/rescale.hpp"
#include "runtime/tile/cuda_memory.cuh"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kThreads = 256, kElements = 8;  // of a thread

template <class Type, int kCount>
struct alignas(sizeof(Type) * kCount) Group {
  Type at[kCount];
};

__device__ __forceinline__ float value_of(const Rescale::Scale& scale) {
  return scale.pointer == nullptr ? 1.0f : *scale.pointer * scale.factor;
}

template <class Type>
__device__ __forceinline__ void rescale_group(const Rescale& rescale, int64_t from, float first,
                                              float second) {
  constexpr int kAtOnce = 4;
  const float* source = in_global_memory(rescale.product) + from;
  Type* target = in_global_memory(static_cast<Type*>(rescale.result)) + from;
  const bool whole = reinterpret_cast<uint64_t>(source) % 16 == 0 &&
                     reinterpret_cast<uint64_t>(target) % 16 == 0 &&
                     from + kElements <= rescale.count;
  if (!whole) {
    for (int i = 0; i < kElements && from + i < rescale.count; ++i)
      target[i] = narrow<Type>(source[i] * first * second);
    return;
  }
  Group<float, kAtOnce> in[kElements / kAtOnce];
#pragma unroll
  for (int i = 0; i < kElements / kAtOnce; ++i)
    in[i] = reinterpret_cast<const Group<float, kAtOnce>*>(source)[i];
#pragma unroll
  for (int i = 0; i < kElements / kAtOnce; ++i) {
    Group<Type, kAtOnce> out;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) out.at[k] = narrow<Type>(in[i].at[k] * first * second);
    reinterpret_cast<Group<Type, kAtOnce>*>(target)[i] = out;
  }
}

__global__ void __launch_bounds__(kThreads)
    rescale_kernel(const __grid_constant__ Rescale rescale) {
  const int64_t from = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (from >= rescale.count) return;
  const float first = value_of(rescale.first), second = value_of(rescale.second);
  with_dtype(rescale.dtype,
             [&]<class Type>(Type*) { rescale_group<Type>(rescale, from, first, second); });
}

}  // namespace

const char* rescale(const Rescale* rescale) {
  const int64_t blocks = ceil_div(rescale->count, int64_t{kThreads} * kElements);
  if (blocks == 0) return nullptr;
  if (blocks > INT32_MAX) return "the product has more elements than a CUDA grid can hold";
  rescale_kernel<<<static_cast<unsigned>(blocks), kThreads, 0,
                   static_cast<cudaStream_t>(rescale->stream)>>>(*rescale);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace narrowcast::inline NC_VARIANT
