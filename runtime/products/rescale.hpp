// The last step of a product whose operands were decoded without the scales that span their
// tensors: each element times one scale after the other, for their own product may have no normal
// float32, and then narrowed. In one pass, since it moves as many bytes as the product wrote.
#pragma once

#include <cstdint>

namespace narrowcast {

struct Rescale {
  // *pointer * factor, in the GPU's memory; 1 if the pointer is NULL
  struct Scale {
    const float* pointer;
    float factor;
  };
  const float* product;  // in the GPU's memory
  void* result;          // likewise, of `dtype`; of float32 it may be `product`
  int64_t count;         // elements
  int32_t dtype;         // nc_dtype
  Scale first, second;
  void* stream;  // cudaStream_t
};

// Returns what went wrong, or NULL. The function is NULL if the library was built without CUDA.
using RescaleFunction = const char* (*)(const Rescale*);
RescaleFunction cuda_rescale();

}  // namespace narrowcast
