// A product of 8-bit codes under their scales by a matrix unit, through cuBLASLt: the kinds of
// sm_89 and sm_90. torch's own call of it searches for an algorithm each time, which takes the host
// longer than a small product takes the GPU; here what was found for a shape is kept.
#pragma once

#include <cstddef>
#include <cstdint>

namespace narrowcast {

// [kept, summed], row by row, and its scales as formats store them for the kind
// (runtime/products/kind_of.hpp). Both lie at multiples of 16 bytes in the GPU's memory.
struct UnitFactor {
  const void* codes;
  const float* scales;
  int64_t kept;
  int32_t is_e5m2;  // e4m3 otherwise
};

struct UnitProduct {
  UnitFactor a, b;  // a @ b.T
  int64_t summed;
  int32_t kind;         // nc_product_kind: one scale each, or groups of 128
  int32_t fast;         // the unit may accumulate in fewer bits
  int32_t dtype;        // nc_dtype, of the result; not float16 with groups of 128
  void* result;         // [a.kept, b.kept], row by row
  bool* has_algorithm;  // what became of it: false if there is none for these shapes, and nothing
                        // was done
  // Memory of the GPU that lasts until work on the stream is done; asked for where an algorithm
  // needs some.
  void* (*workspace)(void* owner, size_t bytes);
  void* owner;
  void* stream;  // cudaStream_t
};

// Returns what went wrong, or NULL. The function is NULL where there is no cuBLASLt: if the library
// was built without CUDA 12.9 or newer, or the process has not loaded the one that it was built
// for.
using UnitFunction = const char* (*)(const UnitProduct*);
UnitFunction cuda_unit_product();

}  // namespace narrowcast
