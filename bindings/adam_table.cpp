#include "bindings/adam_table.hpp"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/python_tensors.hpp"
#include "bindings/tensors.hpp"
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

// What a tensor that a kernel will read must be; its address.
void* checked_state(const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef shape,
                    at::Device device, const std::string& name, const char* key) {
  void* address =
      checked_address(tensor, dtype, c10::multiply_integers(shape), device, name, ": state ", key);
  if (tensor.sizes() != shape)
    value_error(name, ": state ", key, " has shape ", tensor.sizes(), ", not ", shape);
  return address;
}

}  // namespace

AdamTable::Memory AdamTable::remembered(const at::Tensor& tensor, const void* address) {
  return {tensor, address, tensor.numel(), tensor.scalar_type()};
}

AdamTable::AdamTable(const Plugin* plugin, at::Device device, bool stochastic)
    : plugin_(plugin),
      device_(device),
      machine_(machine_of(plugin, device)),
      stochastic_(stochastic),
      table_(machine_, device) {}

at::Tensor AdamTable::take(Parameter& row, const char* key) {
  const py::str name(key);
  PyObject* value = PyDict_GetItemWithError(row.state.ptr(), name.ptr());
  if (value == nullptr) value_error(row.name, ": the optimizer's state has no ", key);
  row.entries.push_back({name, py::reinterpret_borrow<py::object>(value)});
  const py::object local = local_of(row.entries.back().value);
  if (!THPVariable_Check(local.ptr())) value_error(row.name, ": state ", key, " is no tensor");
  return THPVariable_Unpack(local.ptr());
}

void AdamTable::add(const py::object& parameter, const std::string& name, int64_t group,
                    const py::dict& state, uint64_t seed, uint64_t first) {
  Parameter row{};
  row.parameter = parameter;
  row.sharded = is_dtensor(parameter);
  row.held = py::none();
  row.name = name;
  row.group = group;
  row.state = state;
  nc_tensor entry{};
  entry.seed = seed;
  entry.first = first;
  const py::object local = local_of(parameter);
  if (plugin_ != nullptr) {
    row.held = bytes_of(local);
    add_quantized(row, entry, py::cast<const Bytes&>(row.held),
                  THPVariable_Unpack(local.ptr()).sizes());
  } else {
    add_plain(row, entry, THPVariable_Unpack(local.ptr()));
  }
  const at::IntArrayRef shape = THPVariable_Unpack(local.ptr()).sizes();
  const at::Tensor step = take(row, "step"), exp_avg = take(row, "exp_avg"),
                   exp_avg_sq = take(row, "exp_avg_sq");
  row.step =
      static_cast<float*>(checked_address(step, at::kFloat, 1, at::kCPU, name, ": state step"));
  const at::ScalarType dtype = exp_avg.scalar_type();
  entry.state_dtype = checked_dtype(dtype, name, ": state exp_avg");
  entry.exp_avg = checked_state(exp_avg, dtype, shape, device_, name, "exp_avg");
  entry.exp_avg_sq = checked_state(exp_avg_sq, dtype, shape, device_, name, "exp_avg_sq");
  row.memory.insert(row.memory.end(),
                    {remembered(step, row.step), remembered(exp_avg, entry.exp_avg),
                     remembered(exp_avg_sq, entry.exp_avg_sq)});
  tensors_.push_back(entry);
  rows_.push_back(std::move(row));
  steps_.emplace_back();
}

void AdamTable::add_quantized(Parameter& row, nc_tensor& entry, const Bytes& bytes,
                              at::IntArrayRef shape) {
  const uint64_t seed = entry.seed, first = entry.first;
  entry = bytes.entry();
  entry.seed = seed;
  entry.first = first;
  if (machine_.record_amax != nullptr && entry.history == nullptr)
    value_error(row.name, " has no history");
  const at::Tensor master = take(row, "master");
  entry.value = checked_state(master, at::kFloat, shape, device_, row.name, "master");
  entry.value_dtype = NC_F32;
  row.memory.push_back(remembered(master, entry.value));
  for (int buffer = 0; buffer < NC_BUFFER_COUNT; ++buffer) {
    if (bytes.buffer(buffer).defined())
      row.memory.push_back(remembered(bytes.buffer(buffer), entry.buffer[buffer]));
  }
  if (bytes.amax().defined()) row.memory.push_back(remembered(bytes.amax(), entry.amax));
  if (bytes.history().defined()) row.memory.push_back(remembered(bytes.history(), entry.history));
}

void AdamTable::add_plain(Parameter& row, nc_tensor& entry, const at::Tensor& local) {
  const int64_t elements = local.numel();
  row.dtype = local.scalar_type();
  entry.rows = 1;
  entry.columns = elements;
  entry.value_dtype = checked_dtype(row.dtype, row.name);
  check_run(local, elements, device_, row.name);
  void* memory = address_of(local, row.name);
  if (row.state.contains("master")) {
    const at::Tensor master = take(row, "master");
    entry.parameter = memory;
    entry.value = checked_state(master, at::kFloat, local.sizes(), device_, row.name, "master");
    row.memory.push_back(remembered(master, entry.value));
  } else if (entry.value_dtype == NC_F32) {
    entry.value = memory;
  } else {
    value_error(row.name, " is ", c10::toString(row.dtype), " and has no master");
  }
}

bool AdamTable::is_current(const Parameter& row, const nc_tensor& entry,
                           const py::object& local) const {
  for (const auto& [key, value] : row.entries) {
    if (PyDict_GetItemWithError(row.state.ptr(), key.ptr()) != value.ptr()) return false;
  }
  for (const auto& [tensor, address, elements, dtype] : row.memory) {
    const size_t end = (tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
    if (tensor.const_data_ptr() != address || tensor.storage().nbytes() < end ||
        tensor.numel() != elements || tensor.scalar_type() != dtype || !tensor.is_contiguous())
      return false;
  }
  if (!row.held.is_none()) return holds(local, row.held);
  const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
  const void* address = entry.parameter != nullptr ? entry.parameter : entry.value;
  return is_plain(tensor) && tensor.const_data_ptr() == address &&
         tensor.numel() == entry.columns && tensor.scalar_type() == row.dtype &&
         tensor.is_contiguous() &&
         tensor.storage().nbytes() >=
             (tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
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
    if (!is_current(row, tensors_[i], local)) return false;
    nc_step gradient{};
    read_gradient(row, gradient, THPVariable_Unpack(local.ptr()),
                  tensors_[i].rows * tensors_[i].columns);
    const int64_t t = static_cast<int64_t>(*row.step) + 1;
    if (row.group != made_for_group || t != made_for_t) {
      made = make_step(groups[row.group], t);
      made.scaled = inverse_scale.has_value();
      made.grad_multiplier = static_cast<float>(inverse_scale.value_or(1.0));
      made_for_group = row.group;
      made_for_t = t;
    }
    steps_[i] = made;
    steps_[i].grad = gradient.grad;
    steps_[i].grad_dtype = gradient.grad_dtype;
  }
  return true;
}

}  // namespace narrowcast
