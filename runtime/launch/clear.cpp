#include "runtime/launch/clear.hpp"

#if defined(NC_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace {

const char* clear(const Clear* clear) {
  const cudaError_t error =
      cudaMemsetAsync(clear->memory, 0, clear->bytes, static_cast<cudaStream_t>(clear->stream));
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
ClearFunction cuda_clear() { return &clear; }
#else
ClearFunction cuda_clear() { return nullptr; }
#endif

}  // namespace narrowcast
