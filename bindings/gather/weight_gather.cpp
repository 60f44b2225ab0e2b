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
      .def_property_readonly("unpacked", &WeightGather::unpacked)
      .def("receive_into", &WeightGather::receive_into, py::arg("received"), py::arg("unpacked"),
           py::arg("shared") = py::none())
      .def("gathered", &WeightGather::gathered, py::arg("backward"))
      .def("arrive", &WeightGather::arrive, py::arg("backward"))
      .def_property_readonly("present", &WeightGather::present);
  py::class_<GatherGroup, std::shared_ptr<GatherGroup>>(
      module, "GatherGroup", "Weights that are packed together, and unpacked together.")
      .def(py::init<GatherWeights, bool>(), py::arg("weights"), py::arg("keeps_parts") = false)
      .def("keep_packed", &GatherGroup::keep_packed)
      .def("pack", py::overload_cast<bool>(&GatherGroup::pack), py::arg("backward"))
      .def("unpack", &GatherGroup::unpack, py::arg("backward"))
      .def("arrive", &GatherGroup::arrive, py::arg("backward"))
      .def("forget", &GatherGroup::forget);
}

}  // namespace narrowcast
