// The weights that FSDP2 gathers together: one launch a format to pack them, and one to unpack.
#include "bindings/gather.hpp"

#include <algorithm>
#include <map>

#include "bindings/launch.hpp"
#include "bindings/module.hpp"

namespace narrowcast {
namespace {

using Weights = std::vector<std::shared_ptr<WeightGather>>;

class GatherGroup {
 public:
  explicit GatherGroup(const Weights& weights) {
    for (const auto& weight : weights) by_format_[weight->shard().facts().name].push_back(weight);
  }
  void pack(bool backward) const {
    transfer(&nc_machine::pack, "packing shards", &WeightGather::outgoing, backward);
  }
  void unpack(bool backward) const {
    transfer(&nc_machine::unpack, "unpacking gathered shards", &WeightGather::incoming, backward);
  }

 private:
  void transfer(nc_transfer_function nc_machine::*function, const char* what,
                nc_shipment (WeightGather::*shipment)(bool) const, bool backward) const {
    for (const auto& [format, weights] : by_format_) {
      const Bytes& first = weights[0]->shard();
      const nc_machine& machine = first.plugin.machine(first.device);
      std::vector<nc_shipment> shipments;
      shipments.reserve(weights.size());
      for (const auto& weight : weights) {
        const nc_shipment one = (weight.get()->*shipment)(backward);
        if (std::ranges::any_of(one.payload, [](void* payload) { return payload != nullptr; }))
          shipments.push_back(one);
      }
      if (shipments.empty()) continue;
      nc_transfer transfer{};
      transfer.shipments = shipments.data();
      transfer.count = std::ssize(shipments);
      call(machine.*function, what, transfer, first.device);
    }
  }

  std::map<std::string, Weights> by_format_;
};

}  // namespace

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
