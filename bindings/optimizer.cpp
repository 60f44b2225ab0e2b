// The launches of AdamTable, and its face in Python.
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/adam_table.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"
#include "runtime/launch/plan.hpp"

namespace narrowcast {

// The tables of the machine that runs the launch. The tensors' changes seldom, the steps' every
// time. A few rows travel with the launch itself.
void AdamTable::upload() {
  if (!device_tensors_.defined()) {
    tiles_ = assign_tiles(tensors_.data(), size(), machine_);
    device_tensors_ =
        to_device(tensors_.data(), size() * static_cast<int64_t>(sizeof(nc_tensor)), device_);
  }
  if (size() > NC_PARAMETER_TENSORS)
    device_steps_ =
        to_device(steps_.data(), size() * static_cast<int64_t>(sizeof(nc_step)), device_);
}

void AdamTable::launch(nc_function function, const char* what,
                       const std::optional<at::Tensor>& amax) {
  if (tiles_ == 0) return;
  nc_launch launch{};
  launch.host_tables = size() <= NC_PARAMETER_TENSORS;
  launch.tensors = launch.host_tables
                       ? tensors_.data()
                       : static_cast<const nc_tensor*>(device_tensors_.const_data_ptr());
  launch.steps = launch.host_tables ? steps_.data()
                                    : static_cast<const nc_step*>(device_steps_.const_data_ptr());
  launch.count = size();
  launch.tiles = tiles_;
  launch.stochastic = stochastic_;
  launch.stream = stream_of(device_);
  launch.parallel_for = &parallel_for;
  if (amax)
    launch.amax = static_cast<float*>(
        checked_address(*amax, at::kFloat, size(), device_, "the tensor of amaxes"));
  const py::gil_scoped_release release;
  check_launch(function(&launch), what);
}

void AdamTable::update(const std::optional<at::Tensor>& amax) {
  if (size() == 0) return;
  const c10::DeviceGuard guard(device_);
  upload();
  launch(machine_.update != nullptr ? machine_.update : machine_.update_amax, "the update", amax);
}

void AdamTable::finish(const at::Tensor& amax) {
  if (size() == 0) return;
  const c10::DeviceGuard guard(device_);
  if (machine_.update == nullptr) {
    launch(machine_.cast, "the cast", amax);
  } else if (machine_.record_amax != nullptr) {
    launch(machine_.record_amax, "recording the amax", amax);
  }
}

void AdamTable::commit() {
  for (Parameter& row : rows_) {
    if (!row.gradient.defined()) continue;
    *row.step += 1;
    // As any in-place operation of torch: a backward through the old value is then an error, not a
    // wrong gradient.
    THPVariable_Unpack(row.parameter.ptr()).unsafeGetTensorImpl()->bump_version();
    row.gradient = at::Tensor();
  }
}

void bind_optimizer(py::module_& module) {
  py::class_<AdamOptions>(module, "AdamOptions")
      .def(py::init([](double learning_rate, double beta1, double beta2, double epsilon,
                       double weight_decay, bool decoupled) {
        return AdamOptions{learning_rate, beta1, beta2, epsilon, weight_decay, decoupled};
      }));
  py::class_<AdamTable>(module, "AdamTable")
      .def(py::init<const Plugin*, at::Device, bool>(), py::keep_alive<1, 2>())
      .def("add", &AdamTable::add)
      .def("prepare", &AdamTable::prepare)
      .def("update", &AdamTable::update)
      .def("finish", &AdamTable::finish)
      .def("commit", &AdamTable::commit)
      .def("__len__", &AdamTable::size);
}

}  // namespace narrowcast
