#include "bindings/core/buffers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>

#include "bindings/core/launch.hpp"
#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

// A history's floats in a tensor: the multiplier of the present bytes, the next one, the amaxes.
constexpr int64_t kHistoryFloats = sizeof(nc_history) / sizeof(float);

// Of Python's Format, which keeps it.
const Plugin& plugin_of(const py::object& format) {
  return *py::cast<const Plugin*>(format.attr("plugin"));
}

at::Device device_of(const Buffers::Tensors& buffers) {
  for (const OptionalTensor& buffer : buffers) {
    if (buffer) return buffer->device();
  }
  value_error("a matrix needs the bytes of one usage at least");
}

// What C++ is told that asks a QuantizedTensor for its address, and asks Python nothing.
constexpr const char* kNoMemory =
    "a QuantizedTensor has no memory of values that could be read: it keeps codes and scales in "
    "several buffers. Use dequantize(), which makes a plain tensor, or the buffers themselves "
    "(rowwise_data, rowwise_scale_inv, ...). To export or to save a program, nc.to_plain(model) "
    "first";

void withhold_memory(const at::Tensor& wrapper) {
  wrapper.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      kNoMemory);
}

// Whether rowwise and columnwise are among some names. ValueError for another one.
std::array<bool, 2> asked_usages(const std::vector<std::string>& names) {
  std::array<bool, 2> asked{};
  for (const std::string& name : names) asked[usage_of(name)] = true;
  return asked;
}

bool is_absent_or_plain(const OptionalTensor& tensor) { return !tensor || is_plain(*tensor); }

}  // namespace

Buffers::Buffers(py::object its_format, int64_t its_rows, int64_t its_columns, Tensors its_buffers,
                 OptionalTensor its_amax, OptionalTensor its_history)
    : format(std::move(its_format)),
      plugin(plugin_of(format)),
      rows(its_rows),
      columns(its_columns),
      buffers(std::move(its_buffers)),
      amax(std::move(its_amax)),
      history(std::move(its_history)),
      device(device_of(buffers)),
      is_plain(std::ranges::all_of(buffers, is_absent_or_plain) && is_absent_or_plain(amax) &&
               is_absent_or_plain(history)) {
  const auto check = [&](const OptionalTensor& tensor, at::ScalarType dtype, int64_t elements,
                         const char* name) {
    if (!tensor) return;
    if (tensor->scalar_type() != dtype)
      type_error(name, " (", facts().name, ", ", rows, "x", columns, ") is ",
                 c10::toString(tensor->scalar_type()), ", not ",
                 dtype == at::kFloat ? "float32" : "uint8");
    // What a trace works with may have no sizes yet; it stands for a tensor that has been checked.
    if (!tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides())
      check_run(*tensor, elements, device, name, " (", facts().name, ", ", rows, "x", columns, ")");
  };
  for (int index = 0; index < NC_BUFFER_COUNT; ++index)
    check(buffers[index], stored_dtype(plugin, index),
          stored_elements(plugin, index, {rows, columns}), kBufferNames[index]);
  for (const int usage : {0, 1}) {
    const auto [data, scale] = buffers_of(usage);
    if (buffers[data].has_value() != buffers[scale].has_value())
      value_error(kBufferNames[data], " and ", kBufferNames[scale],
                  " go together: one of them is missing");
  }
  check(amax, at::kFloat, 1, "amax");
  check(history, at::kFloat, kHistoryFloats, "history");
}

Buffers::~Buffers() {  // NOLINT(*-exception-escape): Python gives its lock
  const py::gil_scoped_acquire python;
  format.release().dec_ref();
}

Buffers::Tensors allocate_buffers(const Plugin& plugin, Extent matrix, bool rowwise,
                                  bool columnwise, at::Device device) {
  const std::array<bool, 2> asked{rowwise, columnwise};
  Buffers::Tensors buffers;
  for (const int usage : {0, 1}) {
    if (!asked[usage]) continue;
    check_holds(plugin, usage, matrix.rows, matrix.columns);
    for (const int index : buffers_of(usage)) {
      const Extent shape = stored_shape(plugin, index, matrix);
      const std::vector<int64_t> sizes = tensor_sizes(plugin, index, shape);
      const bool padded = used_shape(plugin, index, matrix) != shape;
      const auto typed = at::TensorOptions().device(device).dtype(stored_dtype(plugin, index));
      buffers[index] = padded ? at::zeros(sizes, typed) : at::empty(sizes, typed);
    }
  }
  return buffers;
}

std::shared_ptr<Buffers> Buffers::allocate(py::object format, int64_t rows, int64_t columns,
                                           const std::vector<std::string>& usages,
                                           at::Device device) {
  const Plugin& plugin = plugin_of(format);
  const auto [rowwise, columnwise] = asked_usages(usages);
  Tensors buffers = allocate_buffers(plugin, {rows, columns}, rowwise, columnwise, device);
  const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
  OptionalTensor amax, history;
  if (plugin.format().tensor_amax) amax = at::zeros({1}, floats);
  if (plugin.table->cpu->start_history != nullptr) {
    history = at::zeros({kHistoryFloats}, floats);
    history->narrow(0, 0, 2).fill_(1.0);  // the multipliers before any cast
  }
  return std::make_shared<Buffers>(std::move(format), rows, columns, buffers, amax, history);
}

at::Tensor buffer_of_region(const Plugin& plugin, int index, const at::Tensor& buffer,
                            Extent matrix, Box region) {
  const Extent own{region.end.rows - region.begin.rows, region.end.columns - region.begin.columns};
  if (own == matrix || spans_tensor(plugin, index)) return buffer;
  const std::vector<int64_t> sizes = tensor_sizes(plugin, index, stored_shape(plugin, index, own));
  if (own.rows == 0 || own.columns == 0) return at::zeros(sizes, buffer.options());
  const nc_layout& layout = plugin.layout(index);
  const Box box = is_data(index) ? data_box(layout, region) : scale_box(layout, region);
  const at::Tensor part = buffer.narrow(0, box.begin.rows, box.end.rows - box.begin.rows)
                              .narrow(1, box.begin.columns, box.end.columns - box.begin.columns);
  if (part.sizes() == at::IntArrayRef(sizes) && part.is_contiguous()) return part;
  const at::Tensor copy = at::zeros(sizes, buffer.options());
  const Extent used = used_shape(plugin, index, own);
  const auto corner = [&](const at::Tensor& tensor) {
    return tensor.narrow(0, 0, used.rows).narrow(1, 0, used.columns);
  };
  corner(copy).copy_(corner(part));
  return copy;
}

std::shared_ptr<Buffers> Buffers::part(Box region, bool rowwise, bool columnwise) const {
  const std::array<bool, 2> asked{rowwise, columnwise};
  Tensors parts;
  for (const int usage : {0, 1}) {
    if (!asked[usage] || !has(usage)) continue;
    for (const int index : buffers_of(usage))
      parts[index] = buffer_of_region(plugin, index, *buffers[index], {rows, columns}, region);
  }
  return std::make_shared<Buffers>(format, region.end.rows - region.begin.rows,
                                   region.end.columns - region.begin.columns, parts, amax, history);
}

std::shared_ptr<Buffers> Buffers::exchanged() const {
  return std::make_shared<Buffers>(format, columns, rows,
                                   Tensors{buffers[2], buffers[3], buffers[0], buffers[1]}, amax,
                                   history);
}

bool Buffers::is_freed() const {
  return is_plain && std::ranges::any_of(buffers, [](const OptionalTensor& buffer) {
           return buffer && buffer->numel() != 0 && buffer->storage().nbytes() == 0;
         });
}

void* Buffers::address(const at::Tensor& tensor, const char* name) const {
  return address_of(tensor, name, " of a ", rows, "x", columns, " matrix in ", facts().name);
}

void* Buffers::address(int buffer) const {
  static const at::Tensor kAbsent;
  return address(buffers[buffer] ? *buffers[buffer] : kAbsent, kBufferNames[buffer]);
}

nc_tensor Buffers::entry(std::optional<int> only) const {
  nc_tensor entry{};
  entry.rows = rows;
  entry.columns = columns;
  if (amax) entry.amax = static_cast<float*>(address(*amax, "amax"));
  if (history) entry.history = static_cast<nc_history*>(address(*history, "the history"));
  for (const int usage : {0, 1}) {
    if (only ? usage != *only : !has(usage)) continue;
    for (const int index : buffers_of(usage)) entry.buffer[index] = address(index);
  }
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
  const nc_function function =
      usage == 0 ? machine.dequantize_rowwise : machine.dequantize_columnwise;
  table.assign({entry}, function);
  table.run(function, "dequantizing");
  return value;
}

void bind_bytes(py::module_& module) {
  py::class_<Buffers, std::shared_ptr<Buffers>>(
      module, "Buffers",
      "The bytes of a rows x columns matrix in a format: four buffers (rowwise data and scales, "
      "columnwise data and scales; None where absent), amax and history.")
      .def(py::init<py::object, int64_t, int64_t, Buffers::Tensors, OptionalTensor,
                    OptionalTensor>())
      .def_static("allocate", &Buffers::allocate)
      .def_readonly("format", &Buffers::format)
      .def_readonly("rows", &Buffers::rows)
      .def_readonly("columns", &Buffers::columns)
      .def_readonly("device", &Buffers::device)
      .def_readonly("is_plain", &Buffers::is_plain)
      .def_property_readonly("is_freed", &Buffers::is_freed)
      .def_readonly("amax", &Buffers::amax)
      .def_readonly("history", &Buffers::history)
      .def("buffer", [](const Buffers& bytes, int index) { return bytes.buffers[index]; })
      .def_property_readonly(
          "buffers", [](const Buffers& bytes) { return py::tuple(py::cast(bytes.buffers)); })
      .def("has", [](const Buffers& bytes,
                     const std::string& usage) { return bytes.has(usage_of(usage)); })
      .def_property_readonly("usages",
                             [](const Buffers& bytes) {
                               py::list names;
                               for (const int usage : {0, 1}) {
                                 if (bytes.has(usage)) names.append(kUsageNames[usage]);
                               }
                               return py::tuple(names);
                             })
      .def(
          "part",
          [](const Buffers& bytes, int64_t row, int64_t rows, int64_t column, int64_t columns,
             const std::vector<std::string>& usages) {
            const auto [rowwise, columnwise] = asked_usages(usages);
            return bytes.part({{row, column}, {row + rows, column + columns}}, rowwise, columnwise);
          })
      .def("exchanged", &Buffers::exchanged)
      .def("product_usage", &Buffers::product_usage, py::arg("backward"))
      .def("decode", [](const Buffers& bytes, const std::string& usage, const py::object& dtype) {
        return bytes.decode(usage_of(usage), py::cast<at::ScalarType>(dtype));
      });
  module.def("withhold_memory", &withhold_memory,
             "Asking a wrapper for its memory is an error from now on, instead of a null pointer.");
  module.def(
      "grad", [](const at::Tensor& tensor) { return tensor.grad(); }, py::arg("tensor"),
      "Its gradient, without a torch function; None where there is none.");
  module.def(
      "drop_grad", [](const at::Tensor& tensor) { tensor.mutable_grad().reset(); },
      py::arg("tensor"), "From now on it has none.");
}

}  // namespace narrowcast
