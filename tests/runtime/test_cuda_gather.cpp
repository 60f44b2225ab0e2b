// Gathers on the GPU: what it packs and unpacks are the CPU's bytes, for every format, with more
// weights in one transfer than one launch holds.
#include <doctest/doctest.h>

#include "tests/support/cuda_quantized.hpp"
#include "tests/support/gathers.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// The GPU's side of a Gathered. Payloads and made buffers begin `offset` bytes into their memory,
// so that words are not always aligned.
class DeviceGathered {
 public:
  DeviceGathered(const Gathered& host, int64_t offset) : host_(host), offset_(offset) {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      for (const auto& shard : host.shards[b]) shards_[b].emplace_back(shard);
      made_.emplace_back(poisoned(host.made[b].size()));
    }
    for (const auto& payload : host.payload) payload_.emplace_back(poisoned(payload.size()));
  }

  void add_packing(std::vector<nc_shipment>& all, std::vector<nc_shipment> of_host) {
    for (size_t rank = 0; rank < of_host.size(); ++rank) {
      nc_shipment& one = all.emplace_back(of_host[rank]);
      for (int b = 0; b < NC_BUFFER_COUNT; ++b)
        one.buffer[b] = shards_[b].empty() ? nullptr : shards_[b][rank].get();
      for (int i = 0; i < host_.route.payloads; ++i) {
        one.payload[i] = payload_[static_cast<size_t>(i)].get() + offset_ +
                         static_cast<int64_t>(rank) * host_.route.payload_bytes[i];
      }
    }
  }
  void add_unpacking(std::vector<nc_shipment>& all, const nc_shipment& of_host) {
    nc_shipment& one = all.emplace_back(of_host);
    for (size_t b = 0; b < NC_BUFFER_COUNT; ++b) one.buffer[b] = made_[b].get() + offset_;
    for (size_t i = 0; i < NC_MAX_PAYLOADS; ++i) one.payload[i] = payload_[i].get() + offset_;
  }

  void check_equal() const {
    for (size_t i = 0; i < NC_MAX_PAYLOADS; ++i) CHECK(same_bytes(payload_[i], host_.payload[i]));
    for (size_t b = 0; b < NC_BUFFER_COUNT; ++b) CHECK(same_bytes(made_[b], host_.made[b]));
  }

 private:
  static constexpr size_t kGuard = 16;  // before and behind, which must stay as it is

  static std::vector<uint8_t> poisoned(size_t size) {
    return std::vector<uint8_t>(size + 2 * kGuard, kPoison);
  }
  bool same_bytes(const DeviceArray<uint8_t>& device, const std::vector<uint8_t>& host) const {
    std::vector<uint8_t> expected = poisoned(host.size());
    std::copy(host.begin(), host.end(), expected.begin() + offset_);
    return device.download() == expected;
  }

  const Gathered& host_;
  int64_t offset_;
  std::vector<DeviceArray<uint8_t>> shards_[NC_BUFFER_COUNT], made_, payload_;
};

// All shapes in one transfer.
void check_gathers(const nc_plugin& plugin, nc_phase phase, int64_t offset) {
  std::vector<Gathered> hosts;
  uint64_t seed = 0;
  for (const GatherShape& shape : gather_shapes(*plugin.format))
    hosts.emplace_back(plugin, cast_whole(plugin, shape.matrix, ++seed), shape, phase, false);
  std::vector<DeviceGathered> devices;
  std::vector<nc_shipment> sent, arrived;
  for (Gathered& host : hosts) {
    const std::vector<nc_shipment> of_host = host.packing(), back = {host.unpacking()};
    const nc_transfer packs = transfer_of(of_host), unpacks = transfer_of(back);
    REQUIRE(plugin.cpu->pack(&packs) == nullptr);
    REQUIRE(plugin.cpu->unpack(&unpacks) == nullptr);
    DeviceGathered& device = devices.emplace_back(host, offset);
    device.add_packing(sent, of_host);
    device.add_unpacking(arrived, back[0]);
  }
  nc_transfer transfer = transfer_of(sent);
  REQUIRE(plugin.cuda->pack(&transfer) == nullptr);
  transfer = transfer_of(arrived);
  REQUIRE(plugin.cuda->unpack(&transfer) == nullptr);
  for (const DeviceGathered& device : devices) device.check_equal();
}

TEST_CASE("gather: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    for (const nc_phase phase : kPhases) {
      CAPTURE(static_cast<int>(phase));
      check_gathers(*plugin, phase, 0);
      check_gathers(*plugin, phase, 4);
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
