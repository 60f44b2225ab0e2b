#include "bindings/bytes.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {
namespace {

at::Device device_of(const Bytes::Buffers& buffers) {
  for (const at::Tensor& buffer : buffers) {
    if (buffer.defined()) return buffer.device();
  }
  value_error("a matrix needs the bytes of one usage at least");
}

// A buffer's shape as a tensor: (1,) for the one scale of a whole tensor.
std::vector<int64_t> tensor_shape(const Plugin& plugin, int buffer, Extent matrix) {
  if (spans_tensor(plugin, buffer)) return {1};
  const Extent shape = stored_shape(plugin, buffer, matrix);
  return {shape.rows, shape.columns};
}

}  // namespace

int usage_of(const std::string& name) {
  if (name == kUsageNames[0]) return 0;
  if (name == kUsageNames[1]) return 1;
  value_error("usage is \"rowwise\" or \"columnwise\", not '", name, "'");
}

Bytes::Bytes(py::object format, int64_t rows, int64_t columns, const Given& buffers,
             std::optional<at::Tensor> amax, std::optional<at::Tensor> history)
    : format_(std::move(format)),
      plugin_(*py::cast<const Plugin*>(format_.attr("plugin"))),
      rows_(rows),
      columns_(columns),
      amax_(amax.value_or(at::Tensor())),
      history_(history.value_or(at::Tensor())),
      device_(at::kCPU),
      plain_(true) {
  for (int index = 0; index < NC_BUFFER_COUNT; ++index)
    buffers_[index] = buffers[index].value_or(at::Tensor());
  device_ = device_of(buffers_);
  const auto describe = [&](const char* name) {
    return text(name, " (", facts().name, ", ", rows_, "x", columns_, ")");
  };
  const auto check = [&](const at::Tensor& tensor, at::ScalarType dtype, int64_t elements,
                         const char* name) {
    if (tensor.scalar_type() != dtype)
      type_error(describe(name), " is ", c10::toString(tensor.scalar_type()), ", not ",
                 dtype == at::kFloat ? "float32" : "uint8");
    plain_ = plain_ && narrowcast::is_plain(tensor);
    // What a trace works with may have no sizes yet; it stands for a tensor that has been checked.
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
    if (tensor.device() != device_ || !tensor.is_contiguous() || tensor.numel() != elements)
      check_run(tensor, elements, device_, describe(name));
  };
  for (int index = 0; index < NC_BUFFER_COUNT; ++index) {
    if (!buffers_[index].defined()) continue;
    const Extent shape = stored_shape(plugin_, index, {rows_, columns_});
    check(buffers_[index], stored_dtype(plugin_, index), shape.rows * shape.columns,
          kBufferNames[index]);
  }
  for (const int data : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
    if (buffers_[data].defined() != buffers_[data + 1].defined())
      value_error(kBufferNames[data], " and ", kBufferNames[data + 1],
                  " go together: one of them is missing");
  }
  if (amax_.defined()) check(amax_, at::kFloat, 1, "amax");
  if (history_.defined()) check(history_, at::kFloat, kHistoryFloats, "history");
}

std::shared_ptr<Bytes> Bytes::allocate(py::object format, int64_t rows, int64_t columns,
                                       const std::vector<std::string>& usages, at::Device device) {
  const Plugin& plugin = *py::cast<const Plugin*>(format.attr("plugin"));
  const auto options = at::TensorOptions().device(device);
  Given buffers;
  for (const std::string& name : usages) {
    const int usage = usage_of(name);
    check_holds(plugin, usage, rows, columns);
    for (const int index : {2 * usage, 2 * usage + 1}) {
      const std::vector<int64_t> shape = tensor_shape(plugin, index, {rows, columns});
      const bool padded = used_shape(plugin, index, {rows, columns}) !=
                          stored_shape(plugin, index, {rows, columns});
      const auto typed = options.dtype(stored_dtype(plugin, index));
      buffers[index] = padded ? at::zeros(shape, typed) : at::empty(shape, typed);
    }
  }
  const auto floats = options.dtype(at::kFloat);
  std::optional<at::Tensor> amax, history;
  if (plugin.format().tensor_amax) amax = at::zeros({1}, floats);
  if (plugin.table->cpu->start_history != nullptr) {
    history = at::zeros({kHistoryFloats}, floats);
    history->narrow(0, 0, 2).fill_(1.0);  // the multipliers before any cast
  }
  return std::make_shared<Bytes>(std::move(format), rows, columns, buffers, amax, history);
}

bool Bytes::is_freed() const {
  return plain_ && std::any_of(buffers_.begin(), buffers_.end(), [](const at::Tensor& buffer) {
           return buffer.defined() && buffer.numel() != 0 && buffer.storage().nbytes() == 0;
         });
}

nc_tensor Bytes::empty_entry() const {
  nc_tensor entry{};
  entry.rows = rows_;
  entry.columns = columns_;
  if (amax_.defined()) entry.amax = static_cast<float*>(address_of(amax_, "amax"));
  if (history_.defined())
    entry.history = static_cast<nc_history*>(address_of(history_, "the history"));
  return entry;
}

void Bytes::add_usage(nc_tensor& entry, int usage) const {
  for (const int index : {2 * usage, 2 * usage + 1})
    entry.buffer[index] = address_of(buffers_[index], kBufferNames[index], " of a ", rows_, "x",
                                     columns_, " matrix in ", facts().name);
}

nc_tensor Bytes::entry() const {
  nc_tensor entry = empty_entry();
  for (const int usage : {0, 1}) {
    if (has(usage)) add_usage(entry, usage);
  }
  return entry;
}

nc_tensor Bytes::entry(int usage) const {
  nc_tensor entry = empty_entry();
  add_usage(entry, usage);
  return entry;
}

at::Tensor decode(const Plugin& plugin, int usage, nc_tensor entry, at::Device device,
                  at::ScalarType dtype) {
  at::Tensor value =
      at::empty({entry.rows, entry.columns}, at::TensorOptions().dtype(dtype).device(device));
  const nc_machine& machine = plugin.machine(device);
  entry.value = value.mutable_data_ptr();
  entry.value_dtype = checked_dtype(dtype, "the decoded value");
  MatrixTable table(machine, device);
  table.assign({entry});
  table.run(usage == 0 ? machine.dequantize_rowwise : machine.dequantize_columnwise, "dequantizing",
            {});
  return value;
}

void bind_bytes(py::module_& module) {
  py::class_<Bytes, std::shared_ptr<Bytes>>(
      module, "Bytes",
      "The bytes of a rows x columns matrix in a format: four buffers (rowwise data and scales, "
      "columnwise data and scales; None where absent), amax and history.")
      .def(py::init<py::object, int64_t, int64_t, const Bytes::Given&, std::optional<at::Tensor>,
                    std::optional<at::Tensor>>())
      .def_static("allocate", &Bytes::allocate)
      .def_property_readonly("format", &Bytes::format)
      .def_property_readonly("rows", &Bytes::rows)
      .def_property_readonly("columns", &Bytes::columns)
      .def_property_readonly("device", &Bytes::device)
      .def_property_readonly("is_plain", &Bytes::is_plain)
      .def_property_readonly("is_freed", &Bytes::is_freed)
      .def_property_readonly("amax", [](const Bytes& bytes) { return given(bytes.amax()); })
      .def_property_readonly("history", [](const Bytes& bytes) { return given(bytes.history()); })
      .def("buffer", [](const Bytes& bytes, int index) { return given(bytes.buffer(index)); })
      .def_property_readonly("buffers",
                             [](const Bytes& bytes) {
                               return py::make_tuple(given(bytes.buffer(0)), given(bytes.buffer(1)),
                                                     given(bytes.buffer(2)),
                                                     given(bytes.buffer(3)));
                             })
      .def("has",
           [](const Bytes& bytes, const std::string& usage) { return bytes.has(usage_of(usage)); })
      .def_property_readonly("usages",
                             [](const Bytes& bytes) {
                               py::list names;
                               for (const int usage : {0, 1}) {
                                 if (bytes.has(usage)) names.append(kUsageNames[usage]);
                               }
                               return py::tuple(names);
                             })
      .def("product_usage", &Bytes::product_usage, py::arg("backward"))
      .def("decode", [](const Bytes& bytes, const std::string& usage, const py::object& dtype) {
        return bytes.decode(usage_of(usage), py::cast<at::ScalarType>(dtype));
      });
}

}  // namespace narrowcast
