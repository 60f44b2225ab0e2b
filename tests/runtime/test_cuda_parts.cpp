// Gradients of a reduce-scatter on the GPU: what it sends and sums are the CPU's bytes, for every
// format that they can travel in.
#include <doctest/doctest.h>

#include <string>

#include "tests/support/cuda_memory.hpp"
#include "tests/support/parts.hpp"

namespace narrowcast::test {
namespace {

void check_rank(const nc_machine& gpu, const Reduced& host, size_t rank) {
  const DeviceArray<uint8_t> values(host.values[rank]), received(host.received[rank]);
  const Bytes unwritten(host.sent[rank].size(), 0x5a), no_sum(host.sum[rank].size(), 0x5a);
  const DeviceArray<uint8_t> sent(unwritten), sum(no_sum);
  nc_parts parts = host.parts(static_cast<int64_t>(rank));
  parts.values = values.get();
  parts.bytes = sent.get();
  REQUIRE(gpu.cast_parts(&parts) == nullptr);
  CHECK(sent.download() == host.sent[rank]);
  parts.bytes = received.get();
  parts.sum = sum.get();
  REQUIRE(gpu.add_parts(&parts) == nullptr);
  CHECK(sum.download() == host.sum[rank]);
}

TEST_CASE("parts: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : plugins_with_parts()) {
    if (plugin->cuda == nullptr) continue;
    CAPTURE(std::string(plugin->format->name));
    for (const PartsCase& its : kPartsCases) {
      CAPTURE(its.elements);
      CAPTURE(its.ranks);
      CAPTURE(static_cast<int>(its.dtype));
      Reduced host(*plugin->format, its);
      host.run(*plugin->cpu);
      for (size_t rank = 0; rank < host.values.size(); ++rank) {
        CAPTURE(rank);
        check_rank(*plugin->cuda, host, rank);
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
