// The launches of AdamTable, and its face in Python.
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/adam_table.hpp"
#include "bindings/module.hpp"
#include "runtime/launch/plan.hpp"

namespace narrowcast {

void AdamTable::launch(nc_function function, const char* what, const OptionalTensor& amax) {
  nc_launch launch{};
  launch.tensors = tensor_table_.rows;
  launch.steps = step_table_.rows;
  launch.host_tables = !tensor_table_.copy.defined();
  launch.count = size();
  launch.tiles = tiles_;
  launch.stochastic = stochastic_;
  if (amax) launch.amax = checked_floats(*amax, size(), device_, "the tensor of amaxes");
  call(function, what, launch, device_);
}

void AdamTable::update(const OptionalTensor& amax) {
  if (rows_.empty()) return;
  // The tensors' table changes seldom, the steps' every time.
  if (tiles_ == 0) {
    tiles_ = assign_tiles(tensors_.data(), size(), machine_);
    tensor_table_ = {tensors_, device_};
  }
  step_table_ = {steps_, device_};
  launch(machine_.update != nullptr ? machine_.update : machine_.update_amax, "the update", amax);
}

void AdamTable::finish(const at::Tensor& amax) {
  if (tiles_ == 0) return;
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
