// Weights that are gathered: the whole matrix, its shards, and what lies between them.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/quantized.hpp"
#include "tests/support/threads.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {

struct GatherShape {
  Extent matrix;
  int64_t shard_rows, world;

  int64_t own_rows(int64_t rank) const {
    return std::clamp<int64_t>(matrix.rows - rank * shard_rows, 0, shard_rows);
  }
};

// Worlds whose shards are all full, whose last one is shorter, and whose last ones are empty; on
// one rank a shard may end anywhere.
inline std::vector<GatherShape> gather_shapes(const nc_format& format) {
  std::vector<GatherShape> shapes;
  const auto add = [&](const GatherShape& shape) {
    if (holds(format, shape.matrix)) shapes.push_back(shape);
  };
  const int64_t step = format.shard_row_step;
  for (const int64_t columns : {4, 36, 256, 1284}) {
    for (const int64_t rows : {1, 4, 36, 128, 300}) add({{rows, columns}, rows, 1});
    for (const int64_t world : {2, 3, 4, 8}) {
      for (const int64_t shard_rows : {step, 3 * step, 128 * step / std::min<int64_t>(step, 32)}) {
        add({{world * shard_rows, columns}, shard_rows, world});
        add({{world * shard_rows - step / 2 - 4, columns}, shard_rows, world});
        add({{shard_rows, columns}, shard_rows, world});
      }
    }
  }
  add({{33 * step, 260}, step, 33});
  add({{20 * step - step / 4, 260}, step, 33});
  add({{0, 260}, 0, 2});
  add({{4 * step, 0}, step, 4});
  std::erase_if(shapes, [](const GatherShape& shape) { return shape.matrix.rows < 0; });
  return shapes;
}

// The whole matrix, cast at once.
inline Quantized cast_whole(const nc_plugin& plugin, Extent matrix, uint64_t seed) {
  Quantized whole(*plugin.format, matrix);
  std::vector<float> values = draw(Kind::kBoundaries, matrix.rows * matrix.columns, seed);
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = values.data();
  whole.connect(*plugin.format, tensor);
  float amax = 0;
  nc_launch launch = launch_of(*plugin.cpu, &tensor, 1, nullptr, &amax);
  launch.parallel_for = on_all_threads;
  if (const char* fault = quantize(*plugin.cpu, launch)) throw std::runtime_error(fault);
  return whole;
}

// A shard's buffer, cut out of the whole's by the geometry.
inline std::vector<uint8_t> shard_buffer(const nc_format& format, const Quantized& whole,
                                         const GatherShape& shape, int64_t rank, int buffer) {
  const Layout& layout = layout_of(format, buffer);
  const bool data = buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA;
  const int64_t first = std::min(rank * shape.shard_rows, shape.matrix.rows);
  const Extent own{shape.own_rows(rank), shape.matrix.columns};
  const Box box{{first, 0}, {first + own.rows, own.columns}};
  const Box from = data ? data_box(layout, box) : scale_box(layout, box);
  const Extent to = data ? data_shape(layout, own) : scale_shape(layout, own);
  const Extent all = data ? data_shape(layout, shape.matrix) : scale_shape(layout, shape.matrix);
  const int64_t entry = data ? 1 : layout.scale_bytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(to.rows * to.columns * entry), 0);
  const auto columns = static_cast<size_t>((from.end.columns - from.begin.columns) * entry);
  for (int64_t row = from.begin.rows; row < from.end.rows && columns > 0; ++row) {
    const int64_t source = (row * all.columns + from.begin.columns) * entry;
    const int64_t target = (row - from.begin.rows) * to.columns * entry;
    std::memcpy(bytes.data() + target, whole.buffer[buffer].data() + source, columns);
  }
  return bytes;
}

// One weight's gather in host memory: shards, payloads of all ranks, and the whole to be made.
struct Gathered {
  GatherShape shape;
  nc_route route{};
  std::vector<std::vector<uint8_t>> shards[NC_BUFFER_COUNT];  // of each rank
  std::vector<uint8_t> payload[NC_MAX_PAYLOADS];              // of all ranks
  std::vector<uint8_t> made[NC_BUFFER_COUNT];

  Gathered(const nc_plugin& plugin, const Quantized& whole, const GatherShape& gather_shape,
           nc_phase phase, bool alone)
      : shape(gather_shape) {
    plugin.route(phase, alone, shape.matrix.rows, shape.matrix.columns, shape.shard_rows,
                 shape.world, &route);
    for (int i = 0; i < route.payloads; ++i)
      payload[i].assign(static_cast<size_t>(route.payload_bytes[i] * shape.world), kPoison);
    for (int i = 0; i < route.segments; ++i) {
      const int b = route.segment[i].buffer;
      made[b].assign(whole.buffer[b].size(), kPoison);
      for (int64_t rank = 0; rank < shape.world; ++rank)
        shards[b].push_back(shard_buffer(*plugin.format, whole, shape, rank, b));
    }
  }

  // What each rank packs.
  std::vector<nc_shipment> packing() {
    std::vector<nc_shipment> all;
    for (int64_t rank = 0; rank < shape.world; ++rank) {
      nc_shipment& one = all.emplace_back();
      one.route = route;
      one.own_rows = shape.own_rows(rank);
      for (int i = 0; i < route.segments; ++i) {
        const int b = route.segment[i].buffer;
        one.buffer[b] = shards[b][static_cast<size_t>(rank)].data();
      }
      for (int i = 0; i < route.payloads; ++i)
        one.payload[i] = payload[i].data() + rank * route.payload_bytes[i];
    }
    return all;
  }

  nc_shipment unpacking() {
    nc_shipment one{};
    one.route = route;
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) one.buffer[b] = made[b].data();
    for (int i = 0; i < route.payloads; ++i) one.payload[i] = payload[i].data();
    return one;
  }
};

inline nc_transfer transfer_of(const std::vector<nc_shipment>& shipments) {
  return {.shipments = shipments.data(),
          .count = static_cast<int64_t>(shipments.size()),
          .stream = nullptr,
          .parallel_for = nullptr};
}

inline constexpr nc_phase kPhases[] = {NC_FORWARD, NC_BACKWARD, NC_BOTH};

}  // namespace narrowcast::test
