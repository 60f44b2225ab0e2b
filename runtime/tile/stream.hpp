// Writing past the cache: quantized bytes are not read again soon, and a line that is written whole
// need not be fetched first.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/machine.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace narrowcast::inline NC_VARIANT {

// `source` is aligned to 64 bytes. The bytes are visible to other threads after finish_streams.
NC_MACHINE void stream_bytes(const uint8_t* source, int count, uint8_t* target) {
  int done = 0;
#if defined(__SSE2__)
  if (reinterpret_cast<uintptr_t>(target) % sizeof(__m128i) == 0) {
    for (; done + static_cast<int>(sizeof(__m128i)) <= count;
         done += static_cast<int>(sizeof(__m128i))) {
      const __m128i word = _mm_load_si128(reinterpret_cast<const __m128i*>(source + done));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + done), word);
    }
  }
#endif
  if (done < count) std::memcpy(target + done, source + done, static_cast<size_t>(count - done));
}

NC_MACHINE void finish_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace narrowcast::inline NC_VARIANT
