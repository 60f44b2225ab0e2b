// The loaded formats: their facts, and the shapes of their buffers.
#include "bindings/bytes.hpp"
#include "bindings/errors.hpp"
#include "bindings/module.hpp"
#include "bindings/plugin.hpp"
#include "runtime/plugin/registry.hpp"

namespace narrowcast {

const nc_machine& Plugin::machine(at::Device device) const {
  if (device.is_cpu()) return *table->cpu;
  if (!device.is_cuda()) {
    not_implemented("format ", format().name, " runs on cpu and cuda devices, not on ",
                    device.str());
  }
  if (table->cuda == nullptr) {
    not_implemented("format ", format().name, " was built without GPU kernels (", path,
                    "): build narrowcast where nvcc is, or move the tensor to the CPU");
  }
  return *table->cuda;
}

void check_holds(const Plugin& plugin, int usage, int64_t rows, int64_t columns) {
  const nc_layout& layout = plugin.layout(2 * usage);
  if (holds(layout, {rows, columns})) return;
  const char* what = layout.transposed ? "rows" : "columns";
  value_error("format ", plugin.format().name, " cannot hold a ", rows, "x", columns, " matrix ",
              kUsageNames[usage], ": its ", what, " are packed ", layout.element_bits,
              " bits each, so their number must be a multiple of ", elements_per_group(layout),
              ", not ", layout.transposed ? rows : columns,
              ". Pad the matrix, or ask for the other usage alone");
}

namespace {

py::object block_facts(int64_t rows, int64_t columns) {
  if (rows == 0) return py::str("tensor");
  return py::make_tuple(rows, columns);
}

py::dict usage_facts(const nc_layout& layout) {
  py::dict facts;
  facts["block"] = block_facts(layout.block_rows, layout.block_columns);
  facts["scale_per"] = block_facts(layout.scale_per_rows, layout.scale_per_columns);
  facts["scale_pad"] = py::make_tuple(layout.scale_pad_rows, layout.scale_pad_columns);
  facts["transposed"] = layout.transposed != 0;
  facts["scale_transposed"] = layout.scale_transposed != 0;
  const Extent step = cut_step(layout);
  facts["step"] = py::make_tuple(step.rows, step.columns);
  facts["element_bits"] = layout.element_bits;
  facts["scale_bytes"] = layout.scale_bytes;
  return facts;
}

py::list rule_facts(const nc_format& format) {
  py::list rules;
  for (const nc_rule& rule : format.rules)
    rules.append(py::make_tuple(rule.exact ? "exact" : "error", rule.text));
  return rules;
}

py::dict format_facts(const Plugin& plugin) {
  const nc_format& format = plugin.format();
  py::dict facts;
  facts["name"] = format.name;
  facts["summary"] = format.summary;
  facts["reference"] = format.reference;
  facts["element"] = format.element;
  facts["packing"] = format.packing;
  facts["scale"] = format.scale;
  facts["scale_dtype"] = format.scale_dtype;
  facts["tensor_scale"] = format.tensor_scale;  // None from a null pointer
  facts["scale_rule"] = format.scale_rule;
  facts["amax"] = format.amax;
  facts["rowwise"] = usage_facts(format.rowwise);
  facts["columnwise"] = usage_facts(format.columnwise);
  facts["columnwise_derived"] = format.columnwise_derived != 0;
  facts["tensor_amax"] = format.tensor_amax != 0;
  facts["row_step"] = format.row_step;
  facts["shard_row_step"] = format.shard_row_step;
  facts["group"] = elements_per_group(format.rowwise);
  facts["mirrored"] = mirrored(format.rowwise, format.columnwise);
  facts["bits_per_element"] = format.bits_per_element;
  facts["wire_bits_per_element"] = format.wire_bits_per_element;
  facts["rules"] = py::tuple(rule_facts(format));
  facts["cuda"] = plugin.table->cuda != nullptr;
  return facts;
}

void check_buffer(int buffer) {
  if (buffer < 0 || buffer >= NC_BUFFER_COUNT)
    value_error("there is no buffer ", buffer, ": 0 to 3");
}

// A buffer's shape as a tensor: two-dimensional, but (1,) for the one scale of a whole tensor.
py::tuple shape_of(const Plugin& plugin, int buffer, Extent shape) {
  if (spans_tensor(plugin, buffer)) return py::make_tuple(1);
  return py::make_tuple(shape.rows, shape.columns);
}

py::tuple buffer_shape(const Plugin& plugin, int buffer, int64_t rows, int64_t columns) {
  check_buffer(buffer);
  return shape_of(plugin, buffer, stored_shape(plugin, buffer, {rows, columns}));
}

// The part of a buffer that is no padding.
py::tuple used_part(const Plugin& plugin, int buffer, int64_t rows, int64_t columns) {
  check_buffer(buffer);
  return shape_of(plugin, buffer, used_shape(plugin, buffer, {rows, columns}));
}

// Where a box of a matrix lies in a buffer: the first entry and their number along each dimension.
py::tuple stored_box(const Plugin& plugin, int buffer, int64_t row, int64_t rows, int64_t column,
                     int64_t columns) {
  check_buffer(buffer);
  const nc_layout& layout = plugin.layout(buffer);
  const Box box{{row, column}, {row + rows, column + columns}};
  const auto& [begin, end] = is_data(buffer) ? data_box(layout, box) : scale_box(layout, box);
  const auto along_rows = py::make_tuple(begin.rows, end.rows - begin.rows);
  if (spans_tensor(plugin, buffer)) return py::make_tuple(along_rows);
  return py::make_tuple(along_rows, py::make_tuple(begin.columns, end.columns - begin.columns));
}

}  // namespace

void bind_facts(py::module_& module) {
  py::register_exception<PluginError>(module, "PluginError", PyExc_RuntimeError);
  py::class_<Plugin>(module, "Plugin")
      .def_property_readonly("path", [](const Plugin& plugin) { return plugin.path; })
      .def("facts", &format_facts)
      .def("buffer_shape", &buffer_shape)
      .def("used_shape", &used_part)
      .def("stored_box", &stored_box)
      .def("check_holds",
           [](const Plugin& plugin, const std::string& usage, int64_t rows, int64_t columns) {
             check_holds(plugin, usage_of(usage), rows, columns);
           });
  module.def("load_plugin", [](const std::string& path) {
    return Plugin{&load_plugin(path), path};
  });
}

}  // namespace narrowcast
