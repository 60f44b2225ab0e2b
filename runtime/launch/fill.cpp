#include "runtime/launch/fill.hpp"

#if defined(NC_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace {

const char* fill(const Fill* fill) {
  const auto stream = static_cast<cudaStream_t>(fill->stream);
  const cudaError_t error = fill->from == nullptr
                                ? cudaMemsetAsync(fill->memory, 0, fill->bytes, stream)
                                : cudaMemcpyAsync(fill->memory, fill->from, fill->bytes,
                                                  cudaMemcpyDeviceToDevice, stream);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
FillFunction cuda_fill() { return &fill; }
#else
FillFunction cuda_fill() { return nullptr; }
#endif

}  // namespace narrowcast
