// What all-gathers carry of sharded weights, one by one and together, for Python.
#include "bindings/core/module.hpp"
#include "bindings/gather/group.hpp"

namespace narrowcast {

void bind_gather(py::module_& module) {
  py::class_<WeightGather, std::shared_ptr<WeightGather>>(
      module, "WeightGather", "What all-gathers carry of one sharded weight, and where it arrives.")
      .def(py::init<std::shared_ptr<Buffers>, int64_t, int64_t, int64_t, bool, bool>(),
           py::arg("shard"), py::arg("rows"), py::arg("shard_rows"), py::arg("world"),
           py::arg("both"), py::arg("shares") = false)
      .def_property_readonly("send_bytes", &WeightGather::send_bytes)
      .def("use_send_buffer", &WeightGather::use_send_buffer, py::arg("memory"), py::arg("begin"))
      .def_property_readonly("shared_bytes", &WeightGather::shared_bytes)
      .def("share", &WeightGather::share, py::arg("begin"), py::arg("bytes"))
      .def("payloads", &WeightGather::payloads, py::arg("backward"))
      .def_property_readonly("carries_alike", &WeightGather::carries_alike)
      .def_property_readonly("unpacked_bytes", &WeightGather::unpacked_bytes)
      .def("receive_into", &WeightGather::receive_into, py::arg("received"), py::arg("unpacked"),
           py::arg("shared") = py::none())
      .def("gathered", &WeightGather::gathered, py::arg("backward"));
  py::class_<GatherGroup, std::shared_ptr<GatherGroup>>(
      module, "GatherGroup", "Weights that are packed together, and unpacked together.")
      .def(py::init([](const GatherWeights& weights, py::object group, py::str state,
                       py::object pre_backward, bool keeps_packed, bool keeps_parts,
                       bool has_empty_shards) {
             Fsdp2Group fsdp2{std::move(group), std::move(state), std::move(pre_backward)};
             return std::make_shared<GatherGroup>(weights, std::move(fsdp2), keeps_packed,
                                                  keeps_parts, has_empty_shards);
           }),
           py::arg("weights"), py::arg("group") = py::none(), py::arg("state") = "",
           py::arg("pre_backward") = py::none(), py::arg("keeps_packed") = false,
           py::arg("keeps_parts") = false, py::arg("has_empty_shards") = false)
      .def("watch", &GatherGroup::watch)
      .def_property_readonly("are_quiet", &GatherGroup::are_quiet)
      .def("begin", &GatherGroup::begin)
      .def("pack", py::overload_cast<bool>(&GatherGroup::pack), py::arg("backward"))
      .def_static("pack_together", &GatherGroup::pack_together, py::arg("groups"))
      .def("unpack", &GatherGroup::unpack, py::arg("backward"))
      .def("forget", &GatherGroup::forget);
}

}  // namespace narrowcast
