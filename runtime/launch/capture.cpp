#include "runtime/launch/capture.hpp"

#if defined(NC_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace narrowcast {

#if defined(NC_WITH_CUDA)
bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  if (error == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // some other stream's work is recorded, and nobody may ask of this one
  return true;
}
#else
bool is_captured(void* /*stream*/) { return false; }
#endif

}  // namespace narrowcast
