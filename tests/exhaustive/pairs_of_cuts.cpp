// Every pair of cuts of a 36 x 52 matrix, in every format: three owners together write the bytes of
// the whole cast, and each writes no bit of another. 26 million casts: some minutes of many cores.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/support/flat_shards.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

constexpr Extent kMatrix{36, 52};
constexpr int64_t kElements = kMatrix.rows * kMatrix.columns;

TEST_CASE("every pair of cuts of a small matrix") {
  for (const nc_plugin* plugin : all_plugins()) {
    if (!holds(*plugin->format, kMatrix)) continue;
    const Subject<HostMemory> subject(*plugin, *plugin->cpu, kMatrix,
                                      draw(Kind::kBits, kElements, 1));
    std::atomic<int64_t> next = 0, done = 0;
    const auto work = [&] {
      for (int64_t first; (first = next++) <= kElements;) {
        for (int64_t second = first; second <= kElements; ++second) subject.check({first, second});
        done += kElements - first + 1;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    CHECK(done == (kElements + 1) * (kElements + 2) / 2);
    std::printf("%s: %lld pairs\n", plugin->format->name, static_cast<long long>(done));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace narrowcast::test
