// Casts on the CPU: by one instruction set or another, one thread or many, one usage or both, the
// same bytes.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/casts.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/values.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace narrowcast::test {
namespace {

constexpr Extent kShapes[] = {{1, 1},    {32, 32},     {36, 52},   {65, 96},
                              {100, 60}, {127, 400},   {256, 272}, {304, 304},
                              {1, 4096}, {2000, 1100}, {64, 2050}, {0, 64}};

void three_threads(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 3; ++w) {
    threads.emplace_back([=] { body(context, count * w / 3, count * (w + 1) / 3); });
  }
  for (std::thread& thread : threads) thread.join();
}

template <class Action>
void for_each_case(const Action& action) {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    uint64_t seed = 0;
    for (const Extent matrix : kShapes) {
      if (!holds(*plugin->format, matrix)) continue;
      CAPTURE(matrix.rows);
      CAPTURE(matrix.columns);
      for (const Kind kind : kKinds) {
        CAPTURE(static_cast<int>(kind));
        action(*plugin, matrix, draw(kind, matrix.rows * matrix.columns, ++seed));
      }
    }
  }
}

TEST_CASE("every instruction set gives the same bytes") {
  for_each_case([](const nc_plugin& plugin, Extent matrix, const std::vector<float>& values) {
    const Quantized expected =
        cast(*plugin.format, *plugin.cpu_variant("baseline"), matrix, values);
    for (const char* const* name = plugin.cpu_variants; *name != nullptr; ++name) {
      CAPTURE(std::string(*name));
      CHECK(cast(*plugin.format, *plugin.cpu_variant(*name), matrix, values) == expected);
    }
  });
  CHECK(all_plugins()[0]->cpu_variant("mmx") == nullptr);
}

TEST_CASE("every number of threads gives the same bytes") {
  for_each_case([](const nc_plugin& plugin, Extent matrix, const std::vector<float>& values) {
    CHECK(cast(*plugin.format, *plugin.cpu, matrix, values, three_threads) ==
          cast(*plugin.format, *plugin.cpu, matrix, values));
  });
}

#if defined(__x86_64__)
TEST_CASE("a caller's rounding mode and flushing change no byte, and are left as they were") {
  for_each_case([](const nc_plugin& plugin, Extent matrix, const std::vector<float>& values) {
    const Quantized expected = cast(*plugin.format, *plugin.cpu, matrix, values);
    const unsigned saved = _mm_getcsr();
    const unsigned flush_and_round_up = 0x1f80 | 0x8040 | 0x4000;
    _mm_setcsr(flush_and_round_up);
    const Quantized actual = cast(*plugin.format, *plugin.cpu, matrix, values);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    CHECK(actual == expected);
    CHECK((after & ~0x3fu) ==
          (flush_and_round_up & ~0x3fu));  // the low six bits record what happened
  });
}
#endif

TEST_CASE("each usage alone gives the bytes that both give together") {
  for_each_case([](const nc_plugin& plugin, Extent matrix, const std::vector<float>& values) {
    const Quantized both = cast(*plugin.format, *plugin.cpu, matrix, values);
    for (const int first : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
      Quantized alone(*plugin.format, matrix);
      nc_tensor tensor = tensor_of(matrix);
      tensor.value = const_cast<float*>(values.data());
      alone.connect(*plugin.format, tensor);
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        if (b / 2 != first / 2) tensor.buffer[b] = nullptr;
      }
      float amax = 0;
      REQUIRE(quantize(*plugin.cpu, launch_of(*plugin.cpu, &tensor, 1, nullptr, &amax)) == nullptr);
      CHECK(alone.buffer[first] == both.buffer[first]);
      CHECK(alone.buffer[first + 1] == both.buffer[first + 1]);
    }
  });
}

TEST_CASE("columnwise derived from the rowwise bytes is what the cast writes") {
  for_each_case([](const nc_plugin& plugin, Extent matrix, const std::vector<float>& values) {
    if (plugin.cpu->derive_columnwise == nullptr) return;
    const Quantized expected = cast(*plugin.format, *plugin.cpu, matrix, values);
    Quantized derived(*plugin.format, matrix);
    derived.buffer[NC_ROWWISE_DATA] = expected.buffer[NC_ROWWISE_DATA];
    derived.buffer[NC_ROWWISE_SCALE] = expected.buffer[NC_ROWWISE_SCALE];
    derived.amax = expected.amax;
    derived.history = expected.history;
    nc_tensor tensor = tensor_of(matrix);
    derived.connect(*plugin.format, tensor);
    const nc_launch launch = launch_of(*plugin.cpu, &tensor, 1);
    REQUIRE(plugin.cpu->derive_columnwise(&launch) == nullptr);
    CHECK(derived == expected);
  });
}

}  // namespace
}  // namespace narrowcast::test
