// Zeros in a GPU's memory, as a command of the stream: torch fills by a kernel, behind three
// operators of its own, and takes the host five times as long.
#pragma once

#include <cstddef>

namespace narrowcast {

struct Clear {
  void* memory;  // in the GPU's memory
  size_t bytes;
  void* stream;  // cudaStream_t
};

// Returns what went wrong, or NULL. The function is NULL if the library was built without CUDA.
using ClearFunction = const char* (*)(const Clear*);
ClearFunction cuda_clear();

}  // namespace narrowcast
