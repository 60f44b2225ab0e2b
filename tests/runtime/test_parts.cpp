// Gradients of a reduce-scatter on the CPU: by one instruction set or another, one thread or many,
// the same bytes and sums. What they are, tests/python/conformance/test_parts.py says.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/parts.hpp"
#include "tests/support/threads.hpp"

namespace narrowcast::test {
namespace {

TEST_CASE("parts: every instruction set and number of threads gives the same bytes") {
  for (const nc_plugin* plugin : plugins_with_parts()) {
    CAPTURE(std::string(plugin->format->name));
    for (const PartsCase& its : kPartsCases) {
      CAPTURE(its.elements);
      Reduced expected(*plugin->format, its);
      expected.run(*plugin->cpu_variant("baseline"));
      for (const char* const* name = plugin->cpu_variants; *name != nullptr; ++name) {
        CAPTURE(std::string(*name));
        Reduced got(*plugin->format, its);
        got.run(*plugin->cpu_variant(*name), on_all_threads);
        CHECK(got == expected);
      }
    }
  }
}

TEST_CASE("parts: codes, then scales, and nothing of a matrix's padding") {
  constexpr Layout kLayout = {.block_rows = 1,
                              .block_columns = 32,
                              .scale_per_rows = 1,
                              .scale_per_columns = 32,
                              .scale_pad_rows = 128,
                              .scale_pad_columns = 4,
                              .transposed = false,
                              .scale_transposed = false,
                              .element_bits = 6,
                              .scale_bytes = 1};
  constexpr PartLayout kPart(kLayout, 1001);
  static_assert(kPart.blocks == 32 && kPart.numbers == 1024);
  static_assert(kPart.code_end == 756 && kPart.scales == 768 && kPart.scale_end == 800);
  static_assert(kPart.bytes == 800);
  static_assert(PartLayout(kLayout, 0).bytes == 0);
  static_assert(casts_parts(kLayout, false) && !casts_parts(kLayout, true));
  static_assert(!casts_parts(mirror(kLayout), false));
}

}  // namespace
}  // namespace narrowcast::test
