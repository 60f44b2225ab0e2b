// The launches of AdamTable, and its face in Python.
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/adam_table.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {

void AdamTable::launch(nc_function function, const char* what,
                       const std::optional<at::Tensor>& amax) const {
  nc_launch launch{};
  launch.steps = device_steps_.defined()
                     ? static_cast<const nc_step*>(device_steps_.const_data_ptr())
                     : steps_.data();
  launch.stochastic = stochastic_;
  if (amax)
    launch.amax = static_cast<float*>(
        checked_address(*amax, at::kFloat, size(), device_, "the tensor of amaxes"));
  table_.run(function, what, launch);
}

void AdamTable::update(const std::optional<at::Tensor>& amax) {
  if (size() == 0) return;
  const c10::DeviceGuard guard(device_);
  table_.assign(tensors_);
  // These change every time.
  if (travels_alone(size(), device_))
    device_steps_ =
        to_device(steps_.data(), size() * static_cast<int64_t>(sizeof(nc_step)), device_);
  launch(machine_.update != nullptr ? machine_.update : machine_.update_amax, "the update", amax);
}

void AdamTable::finish(const at::Tensor& amax) {
  if (size() == 0) return;
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
