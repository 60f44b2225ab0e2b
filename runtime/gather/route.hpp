// Which payload holds what: docs/decisions/0002-payloads-of-a-gather.md.
#pragma once

#include <algorithm>

#include "runtime/gather/pieces.hpp"

namespace narrowcast::inline NC_VARIANT {

// A payload for each data buffer, so that what arrives can be the buffer itself, and one for all
// scales. On a mesh of one rank a single one, because FSDP2 copies no other.
inline int32_t payload_of(const nc_route& route, const Pieces& pieces) {
  if (route.payloads == 0) return 0;
  if (route.world == 1) return route.payloads - 1;
  const int32_t last = route.segment[route.segments - 1].buffer;
  const bool after_scales = last == NC_ROWWISE_SCALE || last == NC_COLUMNWISE_SCALE;
  return pieces.scales && after_scales ? route.payloads - 1 : route.payloads;
}

inline void add(nc_route& route, const Pieces& pieces) {
  const int32_t payload = payload_of(route, pieces);
  route.payloads = std::max(route.payloads, payload + 1);
  const Extent shard{route.shard_rows, route.columns};
  const int64_t begin = round_up(route.payload_bytes[payload], pieces.entry_bytes());
  const int64_t end = begin + pieces.compact_bytes(shard);
  const bool as_stored = pieces.compact(shard) == pieces.padded(shard);
  route.payload_bytes[payload] = end;
  route.segment[route.segments++] = {
      pieces.buffer, payload, begin, end, as_stored && pieces.along == Along::kRows, as_stored};
}

// A buffer has its payload for itself, or a part of the only one.
inline void settle(nc_route& route) {
  for (int32_t i = 0; i < route.segments; ++i) {
    nc_segment& segment = route.segment[i];
    const bool fills = segment.end - segment.begin == route.payload_bytes[segment.payload];
    segment.as_stored = segment.as_stored && fills;
    segment.in_place = segment.in_place && (fills || route.world == 1);
  }
}

template <class Gather>
nc_route sized_route(int32_t phase, int64_t rows, int64_t columns, int64_t shard_rows,
                     int64_t world) {
  nc_route route{};
  route.rows = rows;
  route.columns = columns;
  route.shard_rows = shard_rows;
  route.world = world;
  route.phase = phase;
  carry_all<Gather>(phase, [&](const Pieces& pieces) { add(route, pieces); });
  return route;
}

// nc_plugin.route. FSDP2 fixes a payload's size once, so gathers in turn have the larger.
template <class Gather>
void route_of(int32_t phase, int32_t alone, int64_t rows, int64_t columns, int64_t shard_rows,
              int64_t world, nc_route* out) {
  *out = sized_route<Gather>(phase, rows, columns, shard_rows, world);
  if (phase != NC_BOTH && !alone) {
    const int32_t other_phase = phase == NC_FORWARD ? NC_BACKWARD : NC_FORWARD;
    const nc_route other = sized_route<Gather>(other_phase, rows, columns, shard_rows, world);
    for (int i = 0; i < NC_MAX_PAYLOADS; ++i)
      out->payload_bytes[i] = std::max(out->payload_bytes[i], other.payload_bytes[i]);
  }
  settle(*out);
}

}  // namespace narrowcast::inline NC_VARIANT
