// Delayed scaling: the multiplier of the next cast follows from the amaxes of earlier ones, so a
// cast need not wait for its own. docs/numerics.md, "Delayed scaling".
#pragma once

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::inline NC_VARIANT {

// `largest`: of the window, this step's amax included. An infinity or a zero tells nothing of the
// range, and the multiplier stays.
template <class Rule>
NC_EVERYWHERE constexpr float next_multiplier(float largest, float present) {
  const bool tells = largest > 0 && bits_of(largest) != kInfinityBits;
  return tells ? Rule{}(largest).multiplier : present;
}

}  // namespace narrowcast::inline NC_VARIANT
