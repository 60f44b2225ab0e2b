// A copy is a kernel, which took the host 17 us where the stream's own command took 25 (H200, first
// forward of a step). Zeros are such a command.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/fill.hpp"

namespace narrowcast::inline NC_VARIANT {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    copy_kernel(float* to, const float* from, int64_t count) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < count) to[at] = from[at];
}

// As many words as fit among a kernel's parameters, of which every GPU passes 4 KB.
struct Words {
  uint64_t* to;
  int64_t count;
  uint64_t at[510];
};
static_assert(sizeof(Words) <= 4096);

__global__ void __launch_bounds__(kThreads) upload_kernel(const __grid_constant__ Words words) {
  for (int i = threadIdx.x; i < words.count; i += kThreads) words.to[i] = words.at[i];
}

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* fill(const Fill* fill) {
  const auto stream = static_cast<cudaStream_t>(fill->stream);
  if (fill->count == 0) return nullptr;
  if (fill->from == nullptr) {
    cudaMemsetAsync(fill->memory, 0, fill->count * sizeof(float), stream);
  } else {
    const int64_t blocks = ceil_div(fill->count, int64_t{kThreads});
    if (blocks > INT32_MAX) return "more floats than a CUDA grid can hold";
    copy_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(fill->memory, fill->from,
                                                                        fill->count);
  }
  return last_error();
}

const char* upload(const Upload* upload) {
  constexpr auto kMost = static_cast<int64_t>(std::size(Words{}.at));
  const auto* from = static_cast<const uint64_t*>(upload->from);
  for (int64_t first = 0; first < upload->words; first += kMost) {
    Words words{
        static_cast<uint64_t*>(upload->memory) + first, std::min(kMost, upload->words - first), {}};
    std::copy_n(from + first, words.count, words.at);
    upload_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(upload->stream)>>>(words);
  }
  return last_error();
}

}  // namespace narrowcast::inline NC_VARIANT
