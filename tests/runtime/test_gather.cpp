// Gathers on the CPU: for every format, what shards pack and a rank unpacks are the bytes of the
// whole, padding included.
#include <doctest/doctest.h>

#include "tests/support/gathers.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// The bytes of the whole lie in the payload's slot, one after the other.
void check_in_place(const Gathered& g, const nc_segment& segment,
                    const std::vector<uint8_t>& whole) {
  const std::vector<uint8_t>& slot = g.payload[segment.payload];
  REQUIRE(static_cast<size_t>(segment.begin) + whole.size() <= slot.size());
  CHECK(std::equal(whole.begin(), whole.end(), slot.begin() + segment.begin));
  CHECK(std::all_of(g.made[segment.buffer].begin(), g.made[segment.buffer].end(),
                    [](uint8_t byte) { return byte == kPoison; }));
}

// What is packed of a full shard is its buffer.
void check_as_stored(const Gathered& g, const nc_segment& segment) {
  for (int64_t rank = 0; rank < g.shape.world; ++rank) {
    if (g.shape.own_rows(rank) != g.shape.shard_rows) continue;
    const std::vector<uint8_t>& own = g.shards[segment.buffer][static_cast<size_t>(rank)];
    const int64_t bytes = g.route.payload_bytes[segment.payload];
    REQUIRE(static_cast<int64_t>(own.size()) == bytes);
    CHECK(std::equal(own.begin(), own.end(), g.payload[segment.payload].begin() + rank * bytes));
  }
}

void check_gather(const nc_plugin& plugin, const nc_machine& machine, const Quantized& whole,
                  const GatherShape& shape, nc_phase phase, bool alone) {
  Gathered g(plugin, whole, shape, phase, alone);
  const std::vector<nc_shipment> sent = g.packing(), arrived = {g.unpacking()};
  nc_transfer transfer = transfer_of(sent);
  transfer.parallel_for = on_all_threads;
  REQUIRE(machine.pack(&transfer) == nullptr);
  transfer = transfer_of(arrived);
  REQUIRE(machine.unpack(&transfer) == nullptr);
  for (int i = 0; i < g.route.segments; ++i) {
    const nc_segment& segment = g.route.segment[i];
    CAPTURE(segment.buffer);
    if (segment.as_stored) check_as_stored(g, segment);
    if (segment.in_place) {
      check_in_place(g, segment, whole.buffer[segment.buffer]);
    } else {
      CHECK(g.made[segment.buffer] == whole.buffer[segment.buffer]);
    }
  }
}

TEST_CASE("what arrives is the whole, whatever the ranks") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    uint64_t seed = 0;
    for (const GatherShape& shape : gather_shapes(*plugin->format)) {
      CAPTURE(shape.matrix.rows);
      CAPTURE(shape.matrix.columns);
      CAPTURE(shape.shard_rows);
      CAPTURE(shape.world);
      const Quantized whole = cast_whole(*plugin, shape.matrix, ++seed);
      for (const nc_phase phase : kPhases) {
        CAPTURE(static_cast<int>(phase));
        check_gather(*plugin, *plugin->cpu, whole, shape, phase, /*alone=*/false);
        check_gather(*plugin, *plugin->cpu, whole, shape, phase, /*alone=*/true);
      }
    }
  }
}

TEST_CASE("every instruction set moves the same bytes") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    const GatherShape shape{
        {4 * plugin->format->shard_row_step, 132}, plugin->format->shard_row_step, 4};
    if (!holds(*plugin->format, shape.matrix)) continue;
    const Quantized whole = cast_whole(*plugin, shape.matrix, 1);
    for (const char* const* name = plugin->cpu_variants; *name != nullptr; ++name)
      check_gather(*plugin, *plugin->cpu_variant(*name), whole, shape, NC_BOTH, true);
  }
}

// Of every byte that a gather carries, on a mesh where nothing is filled up.
TEST_CASE("the wire carries the bits that the format says") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    nc_route route;
    for (const nc_phase phase : {NC_FORWARD, NC_BACKWARD}) {
      plugin->route(phase, 0, 1024, 2048, 256, 4, &route);
      int64_t bytes = 0;
      for (const int64_t payload : route.payload_bytes) bytes += payload * 4;
      CHECK(8.0 * static_cast<double>(bytes) / (1024 * 2048) ==
            plugin->format->wire_bits_per_element);
      CHECK(route.payloads == (plugin->format->rowwise.block_rows == 0 ? 1 : 2));
    }
  }
}

TEST_CASE("on one rank there is one payload, and alternatives have equal sizes") {
  for (const nc_plugin* plugin : all_plugins()) {
    CAPTURE(std::string(plugin->format->name));
    for (const GatherShape& s : gather_shapes(*plugin->format)) {
      nc_route forward, backward;
      plugin->route(NC_FORWARD, 0, s.matrix.rows, s.matrix.columns, s.shard_rows, s.world,
                    &forward);
      plugin->route(NC_BACKWARD, 0, s.matrix.rows, s.matrix.columns, s.shard_rows, s.world,
                    &backward);
      CHECK(std::equal(forward.payload_bytes, forward.payload_bytes + NC_MAX_PAYLOADS,
                       backward.payload_bytes));
      if (s.world == 1) CHECK(forward.payloads == 1);
      if (s.world == 1 || s.matrix.rows == 0) continue;
      const bool backward_rowwise = backward.segment[0].buffer == NC_ROWWISE_DATA;
      const Layout& of_backward =
          backward_rowwise ? plugin->format->rowwise : plugin->format->columnwise;
      CHECK(forward.segment[0].in_place == !plugin->format->rowwise.transposed);
      CHECK(backward.segment[0].in_place == !of_backward.transposed);
    }
  }
}

TEST_CASE("a payload that is sent as it is stored is not packed") {
  for (const nc_plugin* plugin : all_plugins()) {
    const GatherShape shape{
        {2 * plugin->format->shard_row_step, 256}, plugin->format->shard_row_step, 2};
    const Quantized whole = cast_whole(*plugin, shape.matrix, 1);
    Gathered g(*plugin, whole, shape, NC_FORWARD, true);
    std::vector<nc_shipment> sent = g.packing();
    REQUIRE(g.route.segment[0].as_stored);
    for (nc_shipment& one : sent) one.payload[0] = nullptr;
    const nc_transfer transfer = transfer_of(sent);
    REQUIRE(plugin->cpu->pack(&transfer) == nullptr);
    CHECK(std::count(g.payload[0].begin(), g.payload[0].end(), kPoison) ==
          static_cast<int64_t>(g.payload[0].size()));
  }
}

}  // namespace
}  // namespace narrowcast::test
