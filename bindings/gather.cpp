#include "bindings/gather.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "bindings/launch.hpp"
#include "bindings/module.hpp"

namespace narrowcast {
namespace {

// Parts of the outbox and of the arena begin where every dtype and every wide access may.
constexpr int64_t kAlignment = 256;

int64_t bytes_of(const Plugin& plugin, int buffer, Extent matrix) {
  return stored_elements(plugin, buffer, matrix) *
         static_cast<int64_t>(c10::elementSize(stored_dtype(plugin, buffer)));
}

// Bytes of a tensor of uint8 as a buffer.
at::Tensor viewed(const at::Tensor& memory, int64_t begin, const Plugin& plugin, int buffer,
                  Extent matrix) {
  return memory.narrow(0, begin, bytes_of(plugin, buffer, matrix))
      .view(stored_dtype(plugin, buffer))
      .view(tensor_sizes(plugin, buffer, stored_shape(plugin, buffer, matrix)));
}

int64_t claim(int64_t& end, int64_t bytes) {
  const int64_t begin = end;
  end += round_up(bytes, kAlignment);
  return begin;
}

// A row of a transfer's table, whose payloads are still to come.
nc_shipment shipment_of(const nc_route& route, const Bytes& bytes) {
  const nc_tensor entry = bytes.entry();
  nc_shipment shipment{};
  shipment.route = route;
  shipment.own_rows = bytes.rows;
  std::copy(std::begin(entry.buffer), std::end(entry.buffer), shipment.buffer);
  return shipment;
}

}  // namespace

WeightGather::WeightGather(std::shared_ptr<Bytes> shard, int64_t rows, int64_t shard_rows,
                           int64_t world, bool both)
    : shard_(std::move(shard)) {
  std::vector<int32_t> asked{NC_FORWARD, NC_BACKWARD};
  if (shard_->facts().columnwise_derived) {
    asked = {NC_FORWARD};
  } else if (both) {
    asked = {NC_BOTH};
  } else {
    present_ = at::zeros({}, at::TensorOptions().dtype(at::kLong));
  }
  for (const int32_t phase : asked) {
    Phase& made = phases_.emplace_back();
    shard_->plugin.table->route(phase, asked.size() == 1, rows, shard_->columns, shard_rows, world,
                                &made.route);
    lay_out(made);
  }
}

void WeightGather::lay_out(Phase& phase) {
  const nc_route& route = phase.route;
  int64_t outbox_end = 0, arena_end = 0;
  std::array<bool, NC_MAX_PAYLOADS> as_stored{};
  for (int i = 0; i < route.segments; ++i) {
    const nc_segment& segment = route.segment[i];
    as_stored[segment.payload] = segment.as_stored && shard_->rows == route.shard_rows;
    phase.arena_at[i] = segment.in_place ? kAsStored
                                         : claim(arena_end, bytes_of(shard_->plugin, segment.buffer,
                                                                     {route.rows, route.columns}));
  }
  for (int payload = 0; payload < route.payloads; ++payload)
    phase.outbox_at[payload] =
        as_stored[payload] ? kAsStored : claim(outbox_end, route.payload_bytes[payload]);
  outbox_bytes_ = std::max(outbox_bytes_, outbox_end);
  arena_bytes_ = std::max(arena_bytes_, arena_end);
}

void WeightGather::use_outbox(const at::Tensor& outbox, int64_t begin) {
  for (Phase& phase : phases_) {
    const nc_route& route = phase.route;
    phase.sent.assign(route.payloads, at::Tensor());
    for (int i = 0; i < route.segments; ++i) {
      const auto& [buffer, payload, first, last, in_place, as_stored] = route.segment[i];
      const int64_t at = phase.outbox_at[payload];
      phase.sent[payload] = at == kAsStored
                                ? shard_->buffers[buffer].view({-1}).view(at::kByte)
                                : outbox.narrow(0, begin + at, route.payload_bytes[payload]);
    }
  }
}

void WeightGather::settle(const std::vector<at::Tensor>& slots, const OptionalTensor& arena) {
  slots_ = slots;
  arena_ = arena;
  for (Phase& phase : phases_) {
    if (std::ssize(slots) != phase.route.payloads)
      value_error("FSDP2 brought ", slots.size(), " payloads of a weight, and ",
                  phase.route.payloads, " were sent");
    phase.whole = make_whole(phase);
  }
}

std::shared_ptr<Bytes> WeightGather::make_whole(const Phase& phase) const {
  const nc_route& route = phase.route;
  const Plugin& plugin = shard_->plugin;
  const Extent matrix{route.rows, route.columns};
  Bytes::Buffers buffers;
  for (int i = 0; i < route.segments; ++i) {
    const nc_segment& segment = route.segment[i];
    const bool in_place = phase.arena_at[i] == kAsStored;
    const at::Tensor& memory = in_place ? slots_[segment.payload] : arena_.value();
    const int64_t begin = in_place ? segment.begin : phase.arena_at[i];
    buffers[segment.buffer] = viewed(memory, begin, plugin, segment.buffer, matrix);
  }
  // What spans the tensor is equal in all shards: the whole looks at this rank's.
  for (const auto [data, scale] : {buffers_of(0), buffers_of(1)}) {
    if (spans_tensor(plugin, scale) && buffers[data].defined())
      buffers[scale] = shard_->buffers[scale];
  }
  return std::make_shared<Bytes>(shard_->format, matrix, std::move(buffers), shard_->amax,
                                 shard_->history);
}

const std::shared_ptr<Bytes>& WeightGather::arrive(bool backward) const {
  const std::shared_ptr<Bytes>& bytes = whole(backward);
  // Beside torch's version counter: a graph that has saved it for its backward wants the new value.
  if (present_.defined())
    *static_cast<int64_t*>(present_.mutable_data_ptr()) = bytes->has(0) + 2 * bytes->has(1);
  return bytes;
}

nc_shipment WeightGather::outgoing(bool backward) const {
  const Phase& phase = of(backward);
  nc_shipment shipment = shipment_of(phase.route, *shard_);
  for (int payload = 0; payload < phase.route.payloads; ++payload) {
    if (phase.outbox_at[payload] != kAsStored)
      shipment.payload[payload] = address_of(phase.sent[payload], "a payload");
  }
  return shipment;
}

nc_shipment WeightGather::incoming(bool backward) const {
  const Phase& phase = of(backward);
  nc_shipment shipment = shipment_of(phase.route, *phase.whole);
  for (int payload = 0; payload < phase.route.payloads; ++payload)
    shipment.payload[payload] = address_of(slots_[payload], "a gathered payload");
  return shipment;
}

GatherGroup::GatherGroup(const std::vector<std::shared_ptr<WeightGather>>& weights) {
  for (const auto& weight : weights) by_format_[weight->shard()->facts().name].push_back(weight);
}

void GatherGroup::transfer(nc_transfer_function nc_machine::*function, const char* what,
                           nc_shipment (WeightGather::*shipment)(bool) const, bool backward) const {
  for (const auto& [format, weights] : by_format_) {
    const at::Device device = weights[0]->shard()->device;
    const nc_machine& machine = weights[0]->shard()->plugin.machine(device);
    std::vector<nc_shipment> shipments;
    shipments.reserve(weights.size());
    for (const auto& weight : weights) shipments.push_back(((*weight).*shipment)(backward));
    nc_transfer transfer{};
    transfer.shipments = shipments.data();
    transfer.count = std::ssize(shipments);
    call(machine.*function, what, transfer, device);
  }
}

void GatherGroup::pack(bool backward) const {
  transfer(&nc_machine::pack, "packing shards", &WeightGather::outgoing, backward);
}

void GatherGroup::unpack(bool backward) const {
  transfer(&nc_machine::unpack, "unpacking gathered shards", &WeightGather::incoming, backward);
}

void bind_gather(py::module_& module) {
  py::class_<WeightGather, std::shared_ptr<WeightGather>>(
      module, "WeightGather", "What all-gathers carry of one sharded weight, and where it arrives.")
      .def(py::init<std::shared_ptr<Bytes>, int64_t, int64_t, int64_t, bool>(), py::arg("shard"),
           py::arg("rows"), py::arg("shard_rows"), py::arg("world"), py::arg("both"))
      .def_property_readonly("outbox_bytes", &WeightGather::outbox_bytes)
      .def("use_outbox", &WeightGather::use_outbox, py::arg("outbox"), py::arg("begin"))
      .def("payloads", &WeightGather::payloads, py::arg("backward"))
      .def_property_readonly("arena_bytes", &WeightGather::arena_bytes)
      .def_property_readonly("arena", &WeightGather::arena)
      .def("settle", &WeightGather::settle, py::arg("slots"), py::arg("arena"))
      .def("whole", &WeightGather::whole, py::arg("backward"))
      .def("arrive", &WeightGather::arrive, py::arg("backward"))
      .def_property_readonly("present", &WeightGather::present);
  py::class_<GatherGroup>(module, "GatherGroup",
                          "Weights that are packed together, and unpacked together.")
      .def(py::init<std::vector<std::shared_ptr<WeightGather>>>())
      .def("pack", &GatherGroup::pack, py::arg("backward"))
      .def("unpack", &GatherGroup::unpack, py::arg("backward"));
}

}  // namespace narrowcast
