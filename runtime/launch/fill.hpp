// Zeros, or a copy, in a GPU's memory, as a command of the stream: torch does either behind
// operators of its own, and takes the host several times as long.
#pragma once

#include <cstddef>

namespace narrowcast {

struct Fill {
  void* memory;      // in the GPU's memory
  const void* from;  // there too; NULL: zeros
  size_t bytes;
  void* stream;  // cudaStream_t
};

// Returns what went wrong, or NULL. The function is NULL if the library was built without CUDA.
using FillFunction = const char* (*)(const Fill*);
FillFunction cuda_fill();

}  // namespace narrowcast
