// The step of an optimizer over its tables. All of it is one call, in which no code of Python's
// runs: the handler of a signal, which may raise between any two of its instructions, cannot part
// masters from their count and their bytes.
#include <array>

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

// Keeps the work of the last reductions, about as many as a step has. gloo's threads let go of a
// work some time after it has ended, and the last reference takes Python's lock to free its
// tensors, which aborts the process if the interpreter is exiting by then.
void keep_work(py::object work) {
  static auto& kept = *new std::array<py::object, 4>;
  static size_t next = 0;
  kept[next++ % kept.size()] = std::move(work);
}

// What the ranks of a process group reduce. `all_reduce()` begins it and returns what can be waited
// for; it is a function of C's, as is the waiting.
class Reduction {
 public:
  Reduction(at::Tensor words, py::object all_reduce)
      : words_(std::move(words)), all_reduce_(std::move(all_reduce)) {}

  void reduce() {
    const py::object work = all_reduce_();
    // A GPU's reduction is on the present stream, and nothing has to wait.
    if (!words_.is_cpu()) return;
    keep_work(work);
    work.attr("wait")();
  }

 private:
  at::Tensor words_;
  py::object all_reduce_;
};

// A table's part in a step. `is_reduced`: the cast waits for the reductions; `amax`: those of this
// table, one float a parameter, which the caller has zeroed; also where parameters share a scale.
struct Part {
  AdamTable* table;
  OptionalTensor amax;
  bool is_reduced;
};

// The step that every table has prepared. If a reduction fails, the step is counted, masters are
// new, and the bytes that waited for it are stale: they are made at the next gather or step. Those
// of flat shards the next step makes.
void run_step(const std::vector<Part>& parts, const std::vector<Reduction*>& reductions) {
  for (const Part& part : parts) {
    part.table->update(part.amax);
    if (!part.is_reduced && part.table->spans()) part.table->finish(part.amax);
  }
  const auto commit = [&](bool reduced) {
    for (const Part& part : parts) part.table->commit(reduced || !part.is_reduced);
  };
  try {
    for (Reduction* reduction : reductions) reduction->reduce();
  } catch (...) {
    commit(false);
    throw;
  }
  for (const Part& part : parts) {
    if (part.is_reduced) part.table->finish(part.amax);
  }
  commit(true);
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
  py::class_<AdamOptions>(module, "AdamOptions")
      .def(py::init<double, double, double, double, double, bool>());
  py::class_<AdamTable>(module, "AdamTable")
      .def(py::init<const Plugin*, at::Device, bool>(), py::keep_alive<1, 2>())
      .def(py::init<std::shared_ptr<FlatShards>, bool, OptionalTensor, OptionalTensor>())
      .def("add", &AdamTable::add)
      .def("prepare", &AdamTable::prepare)
      .def("share", &AdamTable::share)
      .def("find_absent", &AdamTable::find_absent)
      .def("__len__", &AdamTable::size);
  py::class_<Reduction>(module, "Reduction")
      .def(py::init<at::Tensor, py::object>())
      .def("reduce", &Reduction::reduce);
  py::class_<Part>(module, "AdamPart")
      .def(py::init<AdamTable*, OptionalTensor, bool>(), py::keep_alive<1, 2>());
  module.def("run_step", &run_step, py::arg("parts"), py::arg("reductions"));
}

}  // namespace narrowcast
