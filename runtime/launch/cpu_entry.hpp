// What every CPU entry point sets before its arithmetic, and restores after it.
#pragma once

#include "runtime/machine.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace narrowcast::inline NC_VARIANT {

// Rounding to nearest and no flushing of subnormals, on this thread: a caller's
// torch.set_flush_denormal(True), or another rounding mode, must not change a byte.
class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  IeeeArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(kAllExceptionsMasked); }
  ~IeeeArithmetic() { _mm_setcsr(saved_); }
#else
  IeeeArithmetic() = default;
#endif
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kAllExceptionsMasked = 0x1f80;
  unsigned saved_;
#endif
};

}  // namespace narrowcast::inline NC_VARIANT
