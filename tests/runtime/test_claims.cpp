// Encoding, scale rules and narrowing against their definitions: every step with its neighbours,
// every bf16 and fp16 value, and densely between. `make exhaustive` asks the same of all 2^32
// floats.
#include <doctest/doctest.h>

#include "tests/support/claims.hpp"

namespace narrowcast::test {
namespace {

TEST_CASE("single floats are as docs/numerics.md defines them") {
  for (const Claim& claim : all_claims()) {
    CAPTURE(claim.name);
    int64_t wrong = 0;
    for (const uint32_t step : claim.samples) {
      const uint32_t before = std::min(step, 3u), after = std::min(~step, 3u);
      wrong += claim.wrong(step - before, step + after);
    }
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const uint32_t b = bits_of(widen(Bf16{static_cast<uint16_t>(bits)}));
      const uint32_t h = bits_of(widen(F16{static_cast<uint16_t>(bits)}));
      wrong += claim.wrong(b, b + 1) + claim.wrong(h, h);
    }
    // A prime stride meets every low bit pattern.
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 5003) {
      wrong += claim.wrong(static_cast<uint32_t>(bits), static_cast<uint32_t>(bits));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a claim that is false is found") {
  Steps steps = encoding(kE4M3);
  steps[100].first += 1;
  Collector collector;
  collector.steps("shifted", Encoded<E4M3>{}, steps);
  const Claim& claim = collector.claims[0];
  CHECK(claim.wrong(steps[90].first, steps[110].first) == 1);
  CHECK(claim.wrong(steps[100].first - 1, steps[100].first - 1) == 1);
  CHECK(claim.wrong(steps[100].first, steps[110].first) == 0);
}

}  // namespace
}  // namespace narrowcast::test
