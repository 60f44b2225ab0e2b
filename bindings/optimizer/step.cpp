// The tables of an optimizer's step, as Python has them.
#include "bindings/core/module.hpp"
#include "bindings/optimizer/adam_table.hpp"
#include "runtime/optimizer/plain.hpp"

namespace narrowcast {
namespace {

const nc_machine& machine_of(const Plugin* plugin, at::Device device) {
  if (plugin != nullptr) return plugin->machine(device);
  if (device.is_cpu()) return plain_cpu();
  if (device.is_cuda() && plain_cuda() != nullptr) return *plain_cuda();
  not_implemented(
      "FusedAdam cannot update parameters on ", device.str(),
      device.is_cuda() ? ": narrowcast was built without GPU kernels" : ": cpu and cuda only");
}

}  // namespace

AdamTable::AdamTable(const Plugin* plugin, at::Device device, bool stochastic)
    : stochastic_(stochastic),
      spans_(plugin != nullptr && plugin->format().tensor_amax != 0),
      table_(machine_of(plugin, device), device),
      ends_(table_.machine(), device) {}

AdamTable::AdamTable(std::shared_ptr<FlatShards> shards, bool stochastic, OptionalTensor exchange,
                     OptionalTensor skips)
    : stochastic_(stochastic),
      spans_(shards->spans()),
      shards_(std::move(shards)),
      exchange_(std::move(exchange)),
      skips_(std::move(skips)),
      table_(shards_->machine(), shards_->device()),
      ends_(shards_->machine(), shards_->device()) {}

void bind_optimizer(py::module_& module) {
  py::class_<AdamW::Options>(module, "AdamOptions")
      .def(py::init<double, double, double, double, double, bool>());
  py::class_<AdamTable>(module, "AdamTable")
      .def(py::init<const Plugin*, at::Device, bool>(), py::keep_alive<1, 2>())
      .def(py::init<std::shared_ptr<FlatShards>, bool, OptionalTensor, OptionalTensor>())
      .def("add", &AdamTable::add)
      .def("prepare", &AdamTable::prepare)
      .def("share", &AdamTable::share)
      .def("update", &AdamTable::update)
      .def("finish", &AdamTable::finish)
      .def("commit", &AdamTable::commit)
      .def("find_absent", &AdamTable::find_absent)
      .def_property_readonly("spans", &AdamTable::spans)
      .def("__len__", &AdamTable::size);
}

}  // namespace narrowcast
