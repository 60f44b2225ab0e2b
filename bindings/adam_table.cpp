#include "bindings/adam_table.hpp"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/python_tensors.hpp"
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
    : plugin_(plugin),
      device_(device),
      machine_(machine_of(plugin, device)),
      stochastic_(stochastic) {}

at::Tensor AdamTable::Parameter::take(const char* key) {
  const py::str entry(key);
  PyObject* value = PyDict_GetItemWithError(state.ptr(), entry.ptr());
  if (value == nullptr) value_error(name, ": the optimizer's state has no ", key);
  taken.emplace_back(entry, py::reinterpret_borrow<py::object>(value));
  const py::object local = local_of(taken.back().second);
  if (!THPVariable_Check(local.ptr())) value_error(name, ": state ", key, " is no tensor");
  return THPVariable_Unpack(local.ptr());
}

void AdamTable::Parameter::remember(const at::Tensor& tensor) {
  if (tensor.defined()) remembered.emplace_back(tensor, Place(tensor));
}

bool AdamTable::Parameter::is_current(const py::object& local) const {
  for (const auto& [key, value] : taken) {
    if (PyDict_GetItemWithError(state.ptr(), key.ptr()) != value.ptr()) return false;
  }
  for (const auto& [tensor, place] : remembered) {
    if (!place.is_of(tensor)) return false;
  }
  if (held) return bytes_of(local).is(held);
  const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
  return is_plain(tensor) && own->is_of(tensor);
}

void* AdamTable::checked_state(Parameter& row, const at::Tensor& tensor, at::ScalarType dtype,
                               at::IntArrayRef shape, const char* key) const {
  void* address = checked_address(tensor, dtype, c10::multiply_integers(shape), device_, row.name,
                                  ": state ", key);
  if (tensor.sizes() != shape)
    value_error(row.name, ": state ", key, " has shape ", tensor.sizes(), ", not ", shape);
  row.remember(tensor);
  return address;
}

void AdamTable::add(const py::object& parameter, const std::string& name, int64_t group,
                    const py::dict& state, uint64_t seed, uint64_t first) {
  Parameter row{};
  row.parameter = parameter;
  row.name = name;
  row.group = group;
  row.state = state;
  row.sharded = is_dtensor(parameter);
  const py::object wrapper = local_of(parameter);
  const at::Tensor& local = THPVariable_Unpack(wrapper.ptr());
  if (plugin_ != nullptr) row.held = bytes_of(wrapper);
  nc_tensor entry = plugin_ == nullptr
                        ? entry_of_plain(row, local)
                        : entry_of_bytes(row, py::cast<const Bytes&>(row.held), local.sizes());
  entry.seed = seed;
  entry.first = first;
  const at::Tensor step = row.take("step"), exp_avg = row.take("exp_avg"),
                   exp_avg_sq = row.take("exp_avg_sq");
  row.step = checked_floats(step, 1, at::kCPU, name, ": state step");
  row.remember(step);
  const at::ScalarType dtype = exp_avg.scalar_type();
  entry.state_dtype = checked_dtype(dtype, name, ": state exp_avg");
  entry.exp_avg = checked_state(row, exp_avg, dtype, local.sizes(), "exp_avg");
  entry.exp_avg_sq = checked_state(row, exp_avg_sq, dtype, local.sizes(), "exp_avg_sq");
  tensors_.push_back(entry);
  rows_.push_back(std::move(row));
  steps_.emplace_back();
  tiles_ = 0;
}

nc_tensor AdamTable::entry_of_bytes(Parameter& row, const Bytes& bytes,
                                    at::IntArrayRef shape) const {
  nc_tensor entry = bytes.entry();
  if (machine_.record_amax != nullptr && entry.history == nullptr)
    value_error(row.name, " has no history");
  entry.value = checked_state(row, row.take("master"), at::kFloat, shape, "master");
  entry.value_dtype = NC_F32;
  for (const at::Tensor& buffer : bytes.buffers) row.remember(buffer);
  row.remember(bytes.amax);
  row.remember(bytes.history);
  return entry;
}

nc_tensor AdamTable::entry_of_plain(Parameter& row, const at::Tensor& local) const {
  nc_tensor entry{};
  entry.rows = 1;
  entry.columns = local.numel();
  entry.value_dtype = checked_dtype(local.scalar_type(), row.name);
  check_run(local, entry.columns, device_, row.name);
  void* memory = address_of(local, row.name);
  row.own.emplace(local);
  if (row.state.contains("master")) {
    entry.parameter = memory;
    entry.value = checked_state(row, row.take("master"), at::kFloat, local.sizes(), "master");
  } else if (entry.value_dtype == NC_F32) {
    entry.value = memory;
  } else {
    value_error(row.name, " is ", c10::toString(local.scalar_type()), " and has no master");
  }
  return entry;
}

void AdamTable::read_gradient(Parameter& row, nc_step& step, const at::Tensor& local,
                              int64_t elements) const {
  at::Tensor gradient = THPVariable_Unpack(row.parameter.ptr()).grad();
  step.grad = nullptr;
  row.gradient = at::Tensor();
  if (!gradient.defined()) return;
  if (row.sharded) {
    const auto wrapper = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
    if (!is_dtensor(wrapper))
      type_error(row.name, ": the parameter is a DTensor and its gradient is not");
    gradient = THPVariable_Unpack(local_of(wrapper).ptr());
  }
  constexpr const char* kWhat = ": the gradient";
  if (gradient.layout() != at::kStrided)
    not_implemented(row.name, kWhat, " is sparse; FusedAdam takes dense gradients");
  if (gradient.sizes() != local.sizes())
    value_error(row.name, kWhat, " has shape ", gradient.sizes(), ", the parameter ", local.sizes(),
                row.sharded ? " on this rank" : "");
  step.grad_dtype = checked_dtype(gradient.scalar_type(), row.name, kWhat);
  row.gradient = gradient.contiguous();
  check_run(row.gradient, elements, device_, row.name, kWhat);
  step.grad = address_of(row.gradient, row.name, kWhat);
  // An empty shard has no element to read, but takes part in what concerns the whole tensor.
  if (elements == 0) step.grad = &row;
}

bool AdamTable::prepare(const std::vector<AdamOptions>& groups,
                        std::optional<double> inverse_scale) {
  int64_t made_for_group = -1, made_for_t = -1;
  nc_step made{};
  for (size_t i = 0; i < rows_.size(); ++i) {
    Parameter& row = rows_[i];
    const py::object local = local_of(row.parameter);
    if (!row.is_current(local)) return false;
    const int64_t t = static_cast<int64_t>(*row.step) + 1;
    if (row.group != made_for_group || t != made_for_t) {
      made = make_step(groups[row.group], t);
      made.scaled = inverse_scale.has_value();
      made.grad_multiplier = static_cast<float>(inverse_scale.value_or(1.0));
      made_for_group = row.group;
      made_for_t = t;
    }
    steps_[i] = made;
    read_gradient(row, steps_[i], THPVariable_Unpack(local.ptr()),
                  tensors_[i].rows * tensors_[i].columns);
  }
  return true;
}

}  // namespace narrowcast
