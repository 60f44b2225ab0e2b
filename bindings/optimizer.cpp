// The step of an optimizer over its tables. All of it is one call, in which Python runs for the
// reduction of amaxes alone: no signal's handler can part masters from their count and their bytes.
#include "bindings/adam_table.hpp"
#include "bindings/module.hpp"
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

// A table's part in a step. `amax`: one float a parameter, for formats with a scale that spans the
// tensor. `shared`: the amaxes are those of shards, and reduced over ranks.
struct Part {
  Part(AdamTable* its_table, OptionalTensor its_amax, bool is_shared)
      : table(its_table), amax(std::move(its_amax)), shared(is_shared) {}

  AdamTable* table;
  OptionalTensor amax;
  bool shared;
};

// The step that every table has prepared. `reduce()`: of the shared amaxes. If it raises, the step
// is counted, masters are new, and the bytes that waited for it are stale: they are made at the
// next gather or step.
void run_step(const std::vector<Part>& parts, const py::function& reduce) {
  bool waiting = false;
  for (const Part& part : parts) {
    part.table->update(part.amax);
    waiting = waiting || part.shared;
    if (part.amax && !part.shared) part.table->finish(*part.amax);
  }
  const auto commit = [&](bool reduced) {
    for (const Part& part : parts) part.table->commit(reduced || !part.shared);
  };
  try {
    if (waiting) reduce();
  } catch (...) {
    commit(false);
    throw;
  }
  for (const Part& part : parts) {
    if (part.shared) part.table->finish(*part.amax);
  }
  commit(true);
}

}  // namespace

AdamTable::AdamTable(const Plugin* plugin, at::Device device, bool stochastic)
    : stochastic_(stochastic), table_(machine_of(plugin, device), device) {}

void bind_optimizer(py::module_& module) {
  py::class_<AdamOptions>(module, "AdamOptions")
      .def(py::init<double, double, double, double, double, bool>());
  py::class_<AdamTable>(module, "AdamTable")
      .def(py::init<const Plugin*, at::Device, bool>(), py::keep_alive<1, 2>())
      .def("add", &AdamTable::add)
      .def("prepare", &AdamTable::prepare)
      .def("without_gradient", &AdamTable::without_gradient)
      .def("__len__", &AdamTable::size);
  py::class_<Part>(module, "AdamPart")
      .def(py::init<AdamTable*, OptionalTensor, bool>(), py::keep_alive<1, 2>());
  module.def("run_step", &run_step, py::arg("parts"), py::arg("reduce"));
}

}  // namespace narrowcast
