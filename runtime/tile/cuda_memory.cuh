// What the compiler does not see by itself: that the tables' pointers lead to global memory, and
// that 16 bytes can be written at once.
#pragma once

#include <cstdint>

namespace narrowcast::inline NC_VARIANT {

template <class Type>
__device__ __forceinline__ Type* in_global_memory(Type* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

__device__ __forceinline__ void store_16_bytes(void* target, const uint32_t* word) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(word[0]), "r"(word[1]),
               "r"(word[2]), "r"(word[3])
               : "memory");
}

}  // namespace narrowcast::inline NC_VARIANT
