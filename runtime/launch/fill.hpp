// What is put into a GPU's memory by small kernels. Zeros, or a copy, of some floats: torch does
// either behind operators of its own, and takes the host several times as long. Bytes of the host,
// which travel among the parameters of kernels: a CUDA graph keeps them, where a copy from memory
// would read that memory at each replay, and no engine for copies is waited for.
#pragma once

#include <cstdint>

namespace narrowcast {

struct Fill {
  float* memory;      // in the GPU's memory
  const float* from;  // there too; NULL: zeros
  int64_t count;
  void* stream;  // cudaStream_t
};

// Returns what went wrong, or NULL. The function is NULL if the library was built without CUDA.
using FillFunction = const char* (*)(const Fill*);
FillFunction cuda_fill();

struct Upload {
  void* memory;      // in the GPU's memory, aligned to words of 8 bytes
  const void* from;  // in the host's, which is read before the function returns
  int64_t words;
  void* stream;  // cudaStream_t
};

using UploadFunction = const char* (*)(const Upload*);
UploadFunction cuda_upload();

}  // namespace narrowcast
