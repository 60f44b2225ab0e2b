// Functions of a float that only step, as the definitions of numbers and scales are: where each
// value begins among the 2^32 bit patterns. Found by bisection of a condition in double precision,
// so that nothing here shares a line with the code that it judges.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/numeric/float_bits.hpp"

namespace narrowcast::test {

struct Step {
  uint32_t first;  // the least bit pattern with this value
  uint64_t value;
};
using Steps = std::vector<Step>;

inline constexpr uint32_t kSign = 0x80000000;

// The least magnitude whose value satisfies `condition`, which holds for all larger ones;
// kInfinityBits + 1 if none does. Infinity counts as 2^128.
template <class Condition>
uint32_t least_magnitude(const Condition& condition) {
  uint32_t low = 0, high = kInfinityBits + 1;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const double value = middle == kInfinityBits ? 0x1p128 : double{float_of(middle)};
    if (condition(value)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The step to each of `values`, which begin where `condition(index, magnitude)` begins to hold.
// Values that no magnitude has are left out.
template <class Condition>
Steps steps_of(const std::vector<uint64_t>& values, const Condition& condition) {
  Steps steps;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t first = i == 0 ? 0 : least_magnitude([&](double x) { return condition(i, x); });
    while (!steps.empty() && steps.back().first == first) steps.pop_back();
    if (first <= kInfinityBits) steps.push_back({first, values[i]});
  }
  return steps;
}

// From the magnitudes to all patterns: `negative` maps a value to that of the negated number.
template <class Negative>
Steps with_signs(const Steps& magnitudes, uint64_t nan_value, const Negative& negative) {
  Steps steps = magnitudes;
  steps.push_back({kInfinityBits + 1, nan_value});
  for (const Step& step : magnitudes) steps.push_back({step.first | kSign, negative(step.value)});
  steps.push_back({(kInfinityBits + 1) | kSign, nan_value});
  return steps;
}

// A function of the amax: signs do not matter, and NaN counts as 0.
inline Steps of_amax(const Steps& magnitudes) {
  return with_signs(magnitudes, magnitudes[0].value, [](uint64_t value) { return value; });
}

}  // namespace narrowcast::test
