// The weights that FSDP2 gathers together: one launch a format to pack them, and one to unpack.
#include "bindings/gather.hpp"

#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "bindings/changes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/python_tensors.hpp"
#include "runtime/launch/capture.hpp"

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

  Shipments& of(bool backward) { return shipments[backward && !weights[0]->carries_alike()]; }
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

  // What a gather has packed stays in the outbox, and the other pass packs the same.
  void keep_packed() { keeps_packed_ = true; }
  // Where a gather begins, and nobody has to be asked, begin() does what is to be done. `group`: a
  // weak reference to FSDP2's, whose `attribute` is `backward` in a backward; `unless`: the name of
  // a module that has to be asked then, if it was imported; `forwards`: whether forwards are such.
  void let_begin(py::object group, py::str attribute, py::object backward, py::str unless,
                 bool forwards) {
    fsdp_ = {std::move(group), std::move(attribute), std::move(backward), std::move(unless)};
    forwards_ = forwards;
  }
  // Of the shards, since they were looked at.
  void watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }
  bool are_quiet() const { return watch_ != nullptr && watch_->is_quiet(); }

  // Whether it is the backward's; nothing if it has not begun, for somebody has to be asked.
  std::optional<bool> begin() {
    if (!fsdp_ || !are_quiet()) return {};
    const py::object group = fsdp_->group();
    if (group.is_none()) return {};
    const bool backward = attribute(group, fsdp_->attribute.ptr()).is(fsdp_->backward);
    if (backward ? PyDict_Contains(PyImport_GetModuleDict(), fsdp_->unless.ptr()) != 0 : !forwards_)
      return {};
    pack(backward);
    return backward;
  }

  void pack(bool backward) {
    for (const SentBuffer& sent : sent_[backward]) sent.check();
    if (packed_.empty()) return;
    const bool may_be_packed = std::exchange(is_packed_ahead_, false) || backward;
    if (may_be_packed && keeps_packed_ && is_packed_ && is_packed_ == now_packed()) return;
    is_packed_.reset();
    for (auto& [format, batch] : packed_) {
      const Shipments& shipments = found(batch, &WeightGather::add_outgoing, backward);
      pack(batch, shipments.rows());
    }
    is_packed_ = now_packed();
  }
  // What the next gathers of some groups pack, where that stays and their shards are as they were
  // when somebody looked: in as few launches as there are formats.
  static void pack_ahead(const std::vector<GatherGroup*>& groups) {
    std::map<std::string, std::pair<const Batch*, std::vector<nc_shipment>>> together;
    for (GatherGroup* group : groups) {
      group->is_packed_ahead_ = group->keeps_packed_ && group->are_quiet();
      if (!group->is_packed_ahead_) continue;
      group->is_packed_.reset();
      for (auto& [format, batch] : group->packed_) {
        const Shipments& shipments = found(batch, &WeightGather::add_outgoing, false);
        auto& [first, rows] =
            together.try_emplace(format, &batch, std::vector<nc_shipment>()).first->second;
        rows.insert(rows.end(), shipments.rows().begin(), shipments.rows().end());
      }
    }
    for (const auto& [format, one] : together) pack(*one.first, one.second);
    for (GatherGroup* group : groups) {
      if (group->is_packed_ahead_) group->is_packed_ = group->now_packed();
    }
  }
  void unpack(bool backward) {
    for (auto& [format, batch] : unpacked_) {
      const Shipments& shipments = found(batch, &WeightGather::add_incoming, backward);
      transfer(&nc_machine::unpack, "unpacking gathered shards", batch, shipments.rows());
    }
  }
  // Weights lie in other memory than at the last gather.
  void forget() {
    is_packed_.reset();
    for (Batches* batches : {&packed_, &unpacked_}) {
      for (auto& [format, batch] : *batches) batch.shipments = {};
    }
  }

 private:
  // With the addresses of now.
  static const Shipments& found(Batch& batch, void (WeightGather::*add)(bool, Shipments&) const,
                                bool backward) {
    Shipments& shipments = batch.of(backward);
    if (!shipments.rows().empty() && shipments.find_addresses()) return shipments;
    Shipments made;
    for (const auto& weight : batch.weights) (weight.get()->*add)(backward, made);
    made.find_addresses();
    return shipments = std::move(made);
  }
  static void transfer(nc_transfer_function nc_machine::*function, const char* what,
                       const Batch& batch, std::span<const nc_shipment> shipments) {
    const Bytes& first = batch.weights[0]->shard();
    nc_transfer transfer{};
    transfer.shipments = shipments.data();
    transfer.count = std::ssize(shipments);
    call(first.plugin.machine(first.device).*function, what, transfer, first.device);
  }
  static void pack(const Batch& batch, std::span<const nc_shipment> shipments) {
    transfer(&nc_machine::pack, "packing shards", batch, shipments);
  }

  // When something was packed: by what of the shards' bytes, and for which stream's work.
  struct Packed {
    int64_t writes, counted;
    void* stream;
    bool operator==(const Packed&) const = default;
  };
  // Of now; nothing if it cannot be known later whether it still is so.
  std::optional<Packed> now_packed() {
    const at::Device device = weights_[0]->shard().device;
    void* const stream = stream_of(device);
    if (device.is_cuda() && is_captured(stream)) return {};
    Packed packed{writes, 0, stream};
    for (auto& [format, batch] : packed_) {
      const std::optional<int64_t> counted = batch.of(false).counted_writes();
      if (!counted) return {};
      packed.counted += *counted;
    }
    return packed;
  }

  struct Fsdp {
    py::object group;
    py::str attribute;
    py::object backward;
    py::str unless;
  };

  Weights weights_;  // which keep their shards
  Batches packed_, unpacked_;
  std::array<std::vector<SentBuffer>, 2> sent_;
  std::optional<Fsdp> fsdp_;
  std::shared_ptr<Watch> watch_;
  bool forwards_ = false, keeps_packed_ = false, is_packed_ahead_ = false;
  std::optional<Packed> is_packed_;
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
      .def("keep_packed", &GatherGroup::keep_packed)
      .def("let_begin", &GatherGroup::let_begin, py::arg("group"), py::arg("attribute"),
           py::arg("backward"), py::arg("unless"), py::arg("forwards"))
      .def("watch", &GatherGroup::watch)
      .def_property_readonly("are_quiet", &GatherGroup::are_quiet)
      .def("begin", &GatherGroup::begin)
      .def("pack", py::overload_cast<bool>(&GatherGroup::pack), py::arg("backward"))
      .def_static("pack_ahead", &GatherGroup::pack_ahead, py::arg("groups"))
      .def("unpack", &GatherGroup::unpack, py::arg("backward"))
      .def("forget", &GatherGroup::forget);
}

}  // namespace narrowcast
