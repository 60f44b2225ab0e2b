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
  constexpr PartLayout kPart(1001, 6, 32, 1);
  static_assert(kPart.code_end == 756 && kPart.scales == 768);
  static_assert(kPart.scale_end == 800 && kPart.bytes == 800);
  static_assert(PartLayout(0, 6, 32, 1).bytes == 0);
  static_assert(PartLayout(129, 8, 128, 4).bytes == 136 + 8 + 8 + 8);
  for (const nc_plugin* plugin : plugins_with_parts()) CHECK(plugin->format->tensor_amax == 0);
}

}  // namespace
}  // namespace narrowcast::test
