#include "runtime/launch/capture.hpp"

#if defined(NC_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace narrowcast {

#if defined(NC_WITH_CUDA)
uint64_t capture_of(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;  // NOLINT(google-runtime-int): as CUDA has it
  const cudaError_t error =
      cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &number);
  if (error == cudaSuccess) return status == cudaStreamCaptureStatusNone ? 0 : number;
  cudaGetLastError();  // some other stream's work is recorded, and nobody may ask of this one
  return UINT64_MAX;
}
#else
uint64_t capture_of(void* /*stream*/) { return 0; }
#endif

}  // namespace narrowcast
