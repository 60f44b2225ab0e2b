// A gather's sequence, read as the work of packing a shard and of unpacking what arrived.
#pragma once

#include <algorithm>

#include "runtime/gather/move.hpp"
#include "runtime/gather/pieces.hpp"

namespace narrowcast::inline NC_VARIANT {

// The payload from a segment on, up to the next one: what no segment holds is zeros too.
inline int64_t room_of(const nc_route& route, int32_t index) {
  const nc_segment& segment = route.segment[index];
  const bool last =
      index + 1 == route.segments || route.segment[index + 1].payload != segment.payload;
  const int64_t end = last ? route.payload_bytes[segment.payload] : route.segment[index + 1].begin;
  return end - segment.begin;
}

struct Packing {
  static bool wanted(const nc_shipment& shipment, const nc_segment& segment) {
    return shipment.payload[segment.payload] != nullptr;
  }
  // From a shard, which may have fewer rows than its place on the wire.
  static Move move(const nc_shipment& shipment, int32_t index, const Pieces& pieces) {
    const nc_route& route = shipment.route;
    const nc_segment& segment = route.segment[index];
    const int64_t entry = pieces.entry_bytes();
    const Extent own{shipment.own_rows, route.columns};
    const Extent used = pieces.compact(own), equal = pieces.equal;
    const int64_t row_bytes = pieces.padded(own).columns * entry;
    return {
        .from = static_cast<const uint8_t*>(shipment.buffer[segment.buffer]),
        .to = static_cast<uint8_t*>(shipment.payload[segment.payload]) + segment.begin,
        .words = room_of(route, index) / entry,
        .columns = std::max<int64_t>(1, pieces.compact({route.shard_rows, route.columns}).columns),
        .row = {used.rows, 1, kOnePiece, 0, equal.rows * row_bytes},
        .column = {used.columns, 1, kOnePiece, 0, equal.columns * entry},
        .first_tile = 0,
        .word = static_cast<int32_t>(entry),
        .reserved = 0};
  }
};

struct Unpacking {
  static bool wanted(const nc_shipment&, const nc_segment& segment) { return !segment.in_place; }
  // From the payloads of all ranks. The memory may be new, so padding is written too.
  static Move move(const nc_shipment& shipment, int32_t index, const Pieces& pieces) {
    const nc_route& route = shipment.route;
    const nc_segment& segment = route.segment[index];
    const int64_t entry = pieces.entry_bytes();
    const int64_t rank_bytes = route.payload_bytes[segment.payload];
    const Extent whole{route.rows, route.columns}, equal = pieces.equal;
    const Extent padded = pieces.padded(whole), used = pieces.used(whole);
    const Extent shard = pieces.compact({route.shard_rows, route.columns});
    const int64_t row_bytes = shard.columns * entry;
    const bool rows = pieces.along == Along::kRows;
    return {.from = static_cast<const uint8_t*>(shipment.payload[segment.payload]) + segment.begin,
            .to = static_cast<uint8_t*>(shipment.buffer[segment.buffer]),
            .words = padded.rows * padded.columns,
            .columns = padded.columns,
            .row = {used.rows, equal.rows, rows ? shard.rows : kOnePiece, rows ? rank_bytes : 0,
                    row_bytes},
            .column = {used.columns, equal.columns, rows ? kOnePiece : shard.columns,
                       rows ? 0 : rank_bytes, entry},
            .first_tile = 0,
            .word = static_cast<int32_t>(entry),
            .reserved = 0};
  }
};

// Calls act(move) for all the work of a transfer.
template <class Gather, class Wire, class Act>
void for_each_move(const nc_transfer& transfer, const Act& act) {
  for (int64_t i = 0; i < transfer.count; ++i) {
    const nc_shipment& shipment = transfer.shipments[i];
    int32_t index = 0;
    carry_all<Gather>(shipment.route.phase, [&](const Pieces& pieces) {
      const int32_t at = index++;
      if (!Wire::wanted(shipment, shipment.route.segment[at])) return;
      const Move move = Wire::move(shipment, at, pieces);
      if (move.words > 0) act(widened(move));
    });
  }
}

}  // namespace narrowcast::inline NC_VARIANT
