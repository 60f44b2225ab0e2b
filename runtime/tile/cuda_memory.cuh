// What the compiler does not see by itself: that the tables' pointers lead to global memory, and
// that 8 or 16 bytes can be written at once. A store for each number would have the L2 cache take
// every sector as often.
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

__device__ __forceinline__ void store_8_bytes(void* target, const uint32_t* word) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(target), "r"(word[0]), "r"(word[1])
               : "memory");
}

}  // namespace narrowcast::inline NC_VARIANT
