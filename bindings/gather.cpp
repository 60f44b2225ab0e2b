// The weights that FSDP2 gathers together: one launch a format to pack them, and one to unpack.
#include "bindings/gather.hpp"

#include <array>
#include <map>

#include "bindings/launch.hpp"
#include "bindings/module.hpp"

namespace narrowcast {
namespace {

using Weights = std::vector<std::shared_ptr<WeightGather>>;

// A shard's buffer that is sent as it is stored: FSDP2 reads it, and does not ask whether it has
// been freed. Nobody has looked at it for long; its storage alone is one place of memory.
struct SentBuffer {
  SentBuffer(const Bytes& its_shard, int its_buffer)
      : shard(its_shard),
        buffer(its_buffer),
        storage(shard.buffers[buffer]->storage()),
        end(shard.buffers[buffer]->numel() == 0 ? 0 : end_of(*shard.buffers[buffer])) {}

  void check() const {
    if (storage.nbytes() < end) shard.address(buffer);  // says what has been freed
  }

  const Bytes& shard;
  int buffer;
  c10::Storage storage;
  size_t end;
};

// Weights of one format, of which something is packed, or unpacked, and that by pass.
struct Batch {
  Weights weights;
  std::array<Shipments, 2> shipments;
};
using Batches = std::map<std::string, Batch>;

class GatherGroup {
 public:
  explicit GatherGroup(const Weights& weights) : weights_(weights) {
    for (const auto& weight : weights) {
      const Bytes& shard = weight->shard();
      const std::string format = shard.facts().name;
      if (weight->outbox_bytes() + weight->shared_bytes() != 0)
        packed_[format].weights.push_back(weight);
      if (weight->arena_bytes() != 0) unpacked_[format].weights.push_back(weight);
      for (const bool backward : {false, true}) {
        if (!shard.is_plain) continue;  // what stands for a tensor has no memory
        for (const int buffer : weight->sent_as_stored(backward))
          sent_[backward].emplace_back(shard, buffer);
      }
    }
  }

  void pack(bool backward) {
    for (const SentBuffer& sent : sent_[backward]) sent.check();
    transfer(packed_, &nc_machine::pack, "packing shards", &WeightGather::add_outgoing, backward);
  }
  void unpack(bool backward) {
    transfer(unpacked_, &nc_machine::unpack, "unpacking gathered shards",
             &WeightGather::add_incoming, backward);
  }
  // Weights lie in other memory than at the last gather.
  void forget() {
    for (Batches* batches : {&packed_, &unpacked_}) {
      for (auto& [format, batch] : *batches) batch.shipments = {};
    }
  }

 private:
  static void transfer(Batches& batches, nc_transfer_function nc_machine::*function,
                       const char* what, void (WeightGather::*add)(bool, Shipments&) const,
                       bool backward) {
    for (auto& [format, batch] : batches) {
      Shipments& shipments = batch.shipments[backward];
      if (shipments.size() == 0 || !shipments.find_addresses()) {
        Shipments made;
        for (const auto& weight : batch.weights) (weight.get()->*add)(backward, made);
        made.find_addresses();
        shipments = std::move(made);
      }
      const Bytes& first = batch.weights[0]->shard();
      nc_transfer transfer{};
      transfer.shipments = shipments.data();
      transfer.count = shipments.size();
      call(first.plugin.machine(first.device).*function, what, transfer, first.device);
    }
  }

  Weights weights_;  // which keep their shards
  Batches packed_, unpacked_;
  std::array<std::vector<SentBuffer>, 2> sent_;
};

}  // namespace

void bind_gather(py::module_& module) {
  py::class_<WeightGather, std::shared_ptr<WeightGather>>(
      module, "WeightGather", "What all-gathers carry of one sharded weight, and where it arrives.")
      .def(py::init<std::shared_ptr<Bytes>, int64_t, int64_t, int64_t, bool, bool>(),
           py::arg("shard"), py::arg("rows"), py::arg("shard_rows"), py::arg("world"),
           py::arg("both"), py::arg("shares") = false)
      .def_property_readonly("outbox_bytes", &WeightGather::outbox_bytes)
      .def("use_outbox", &WeightGather::use_outbox, py::arg("outbox"), py::arg("begin"))
      .def_property_readonly("shared_bytes", &WeightGather::shared_bytes)
      .def("share", &WeightGather::share, py::arg("begin"), py::arg("bytes"))
      .def("payloads", &WeightGather::payloads, py::arg("backward"))
      .def_property_readonly("carries_alike", &WeightGather::carries_alike)
      .def_property_readonly("arena_bytes", &WeightGather::arena_bytes)
      .def_property_readonly("arena", &WeightGather::arena)
      .def("settle", &WeightGather::settle, py::arg("slots"), py::arg("arena"),
           py::arg("shared") = py::none())
      .def("whole", &WeightGather::whole, py::arg("backward"))
      .def("arrive", &WeightGather::arrive, py::arg("backward"))
      .def_property_readonly("present", &WeightGather::present);
  py::class_<GatherGroup>(module, "GatherGroup",
                          "Weights that are packed together, and unpacked together.")
      .def(py::init<std::vector<std::shared_ptr<WeightGather>>>())
      .def("pack", &GatherGroup::pack, py::arg("backward"))
      .def("unpack", &GatherGroup::unpack, py::arg("backward"))
      .def("forget", &GatherGroup::forget);
}

}  // namespace narrowcast
