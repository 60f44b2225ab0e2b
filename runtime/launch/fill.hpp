// Zeros, or a copy, of some floats in a GPU's memory: torch does either behind operators of its
// own, and takes the host several times as long.
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

}  // namespace narrowcast
