#include "bindings/adam_table.hpp"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/errors.hpp"
#include "runtime/launch/plan.hpp"
#include "runtime/optimizer/plain.hpp"

namespace narrowcast {
namespace {

const nc_machine& machine_of(const std::optional<Plugin>& plugin, at::Device device) {
  if (plugin) return plugin->machine(device);
  if (device.is_cpu()) return plain_cpu();
  if (device.is_cuda() && plain_cuda() != nullptr) return *plain_cuda();
  not_implemented(
      "FusedAdam cannot update parameters on ", device.str(),
      device.is_cuda() ? ": narrowcast was built without GPU kernels" : ": cpu and cuda only");
}

py::object local_of(const py::object& parameter, bool sharded) {
  static PyObject* const kLocalTensor = PyUnicode_InternFromString("_local_tensor");
  if (!sharded) return parameter;
  PyObject* local = PyObject_GetAttr(parameter.ptr(), kLocalTensor);
  if (local == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(local);
}

// The object that holds the bytes of a QuantizedTensor; null for any other tensor.
py::object owner_of(const py::object& local) {
  static PyObject* const kMatrix = PyUnicode_InternFromString("_matrix");
  PyObject* owner = PyObject_GetAttr(local.ptr(), kMatrix);
  if (owner == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(owner);
}

}  // namespace

AdamTable::AdamTable(std::optional<Plugin> plugin, at::Device device, bool stochastic)
    : plugin_(std::move(plugin)),
      device_(device),
      machine_(machine_of(plugin_, device)),
      stochastic_(stochastic) {}

AdamTable::Row& AdamTable::add(const py::object& parameter, const std::string& name, int64_t group,
                               const AdamState& state, int64_t rows, int64_t columns) {
  Row row{};
  row.parameter = parameter;
  row.owner = py::none();
  row.name = name;
  row.group = group;
  row.sharded = py::hasattr(parameter, "_local_tensor");
  row.state = state;
  nc_tensor entry{};
  entry.rows = rows;
  entry.columns = columns;
  entry.state_dtype = dtype_number(state.exp_avg.scalar_type(), name + ": state exp_avg");
  if (state.exp_avg_sq.scalar_type() != state.exp_avg.scalar_type())
    value_error(name, ": the moments differ in dtype");
  entry.exp_avg = checked_pointer(state.exp_avg, rows * columns, device_, name + ": state exp_avg");
  entry.exp_avg_sq =
      checked_pointer(state.exp_avg_sq, rows * columns, device_, name + ": state exp_avg_sq");
  checked_floats(state.step, 1, at::kCPU, name + ": state step");
  row.memory = {{state.exp_avg, entry.exp_avg}, {state.exp_avg_sq, entry.exp_avg_sq}};
  tensors_.push_back(entry);
  rows_.push_back(std::move(row));
  steps_.emplace_back();
  device_tensors_ = at::Tensor();
  return rows_.back();
}

void AdamTable::add_quantized(const py::object& parameter, const std::string& name, int64_t group,
                              const AdamState& state, const py::object& owner, const Matrix& matrix,
                              uint64_t seed, uint64_t first) {
  const auto& [rows, columns, master, buffers, amax, history] = matrix;
  if (!master) value_error(name, " has no master");
  if (machine_.record_amax != nullptr && !history) value_error(name, " has no history");
  nc_tensor quantized{};
  describe_buffers(quantized, *plugin_, matrix, device_);
  void* value = checked_floats(*master, rows * columns, device_, name + ": the master");
  Row& row = add(parameter, name, group, state, rows, columns);
  nc_tensor& entry = tensors_.back();
  entry.value = value;
  entry.value_dtype = NC_F32;
  entry.amax = quantized.amax;
  entry.history = quantized.history;
  entry.seed = seed;
  entry.first = first;
  row.owner = owner;
  row.memory.emplace_back(*master, value);
  if (amax) row.memory.emplace_back(*amax, entry.amax);
  if (history) row.memory.emplace_back(*history, entry.history);
  for (int buffer = 0; buffer < NC_BUFFER_COUNT; ++buffer) {
    entry.buffer[buffer] = quantized.buffer[buffer];
    if (buffers[buffer]) row.memory.emplace_back(*buffers[buffer], quantized.buffer[buffer]);
  }
}

void AdamTable::add_plain(const py::object& parameter, const std::string& name, int64_t group,
                          const AdamState& state, const std::optional<at::Tensor>& master) {
  const auto local =
      local_of(parameter, py::hasattr(parameter, "_local_tensor")).cast<at::Tensor>();
  const int64_t elements = local.numel();
  const int32_t dtype = dtype_number(local.scalar_type(), name);
  if (!master && dtype != NC_F32) {
    value_error(name, " is ", c10::toString(local.scalar_type()), " and has no master");
  }
  void* memory = checked_pointer(local, elements, device_, name);
  void* value = master ? checked_floats(*master, elements, device_, name + ": the master") : memory;
  Row& row = add(parameter, name, group, state, 1, elements);
  nc_tensor& entry = tensors_.back();
  entry.value = value;
  entry.value_dtype = dtype;
  entry.parameter = master ? memory : nullptr;
  row.dtype = local.scalar_type();
  if (master) row.memory.emplace_back(*master, value);
}

bool AdamTable::is_current(const Row& row, const nc_tensor& entry, const py::object& local) const {
  for (const auto& [tensor, address] : row.memory) {
    if (tensor.data_ptr() != address) return false;
  }
  if (!row.owner.is_none()) return owner_of(local).is(row.owner);
  const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
  const void* address = entry.parameter != nullptr ? entry.parameter : entry.value;
  return !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.data_ptr() == address &&
         tensor.numel() == entry.columns && tensor.scalar_type() == row.dtype &&
         tensor.is_contiguous();
}

void AdamTable::read_gradient(Row& row, nc_step& step, const at::Tensor& local,
                              int64_t elements) const {
  at::Tensor gradient = THPVariable_Unpack(row.parameter.ptr()).grad();
  if (gradient.defined() && row.sharded) {
    const auto wrapper = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
    if (!py::hasattr(wrapper, "_local_tensor")) {
      type_error(row.name, ": the parameter is a DTensor and its gradient is not");
    }
    gradient = THPVariable_Unpack(local_of(wrapper, true).ptr());
  }
  step.grad = nullptr;
  row.gradient = at::Tensor();
  if (!gradient.defined()) return;
  const std::string what = row.name + ": the gradient";
  if (gradient.layout() != at::kStrided) {
    not_implemented(what, " is sparse; FusedAdam takes dense gradients");
  }
  if (gradient.sizes() != local.sizes()) {
    value_error(what, " has shape ", gradient.sizes(), ", the parameter ", local.sizes(),
                row.sharded ? " on this rank" : "");
  }
  step.grad_dtype = dtype_number(gradient.scalar_type(), what);
  row.gradient = gradient.contiguous();
  step.grad = checked_pointer(row.gradient, elements, device_, what);
  // An empty shard has no element to read, but takes part in what concerns the whole tensor.
  if (elements == 0) step.grad = &row;
}

bool AdamTable::prepare(const std::vector<AdamOptions>& groups,
                        std::optional<double> inverse_scale) {
  int64_t made_for_group = -1, made_for_t = -1;
  nc_step made{};
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    const py::object local = local_of(row.parameter, row.sharded);
    if (!is_current(row, tensors_[i], local)) return false;
    nc_step gradient{};
    read_gradient(row, gradient, THPVariable_Unpack(local.ptr()),
                  tensors_[i].rows * tensors_[i].columns);
    const int64_t t = static_cast<int64_t>(*row.state.step.const_data_ptr<float>()) + 1;
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
