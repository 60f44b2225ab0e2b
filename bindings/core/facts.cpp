// The loaded formats: their facts, and the shapes of their buffers.
#include <map>
#include <mutex>
#include <optional>

#include "bindings/core/errors.hpp"
#include "bindings/core/module.hpp"
#include "bindings/core/plugin.hpp"
#include "runtime/plugin/registry.hpp"
#include "runtime/products/factors.hpp"
#include "runtime/products/kind_of.hpp"
#include "runtime/products/kinds.hpp"

namespace narrowcast {

const nc_machine& Plugin::machine(at::Device device) const {
  if (device.is_cpu()) return *table->cpu;
  if (!device.is_cuda())
    not_implemented("format ", format().name, " runs on cpu and cuda devices, not on ",
                    device.str());
  if (table->cuda == nullptr)
    not_implemented("format ", format().name, " was built without GPU kernels (", path,
                    "): build narrowcast where nvcc is, or move the tensor to the CPU");
  return *table->cuda;
}

const Plugin& plugin_named(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, Plugin, std::less<>> named;  // whose entries stay in their places
  const std::scoped_lock lock(mutex);
  if (const auto found = named.find(name); found != named.end()) return found->second;
  const nc_plugin* table = find_plugin(name);
  if (table == nullptr) value_error("there is no format '", name, "'");
  return named.emplace(name, Plugin{table, text("the plugin of ", name)}).first->second;
}

int usage_of(const std::string& name) {
  for (const int usage : {0, 1}) {
    if (name == kUsageNames[usage]) return usage;
  }
  value_error("usage is \"rowwise\" or \"columnwise\", not '", name, "'");
}

void check_holds(const Plugin& plugin, int usage, int64_t rows, int64_t columns) {
  const nc_layout& layout = plugin.layout(2 * usage);
  if (holds(layout, {rows, columns})) return;
  const char* what = layout.transposed ? "rows" : "columns";
  value_error("format ", plugin.format().name, " cannot hold a ", rows, "x", columns, " matrix ",
              kUsageNames[usage], ": its ", what, " are packed ", layout.element_bits,
              " bits each, so their number must be a multiple of ", elements_per_group(layout),
              ", not ", layout.transposed ? rows : columns,
              ". Pad the matrix, ask for the other usage alone, or leave a model's weight out with "
              "nc.convert's filter");
}

namespace {

py::object block_facts(int64_t rows, int64_t columns) {
  if (rows == 0) return py::str("tensor");
  return py::make_tuple(rows, columns);
}

py::dict usage_facts(const nc_layout& layout) {
  using namespace py::literals;
  const Extent step = cut_step(layout);
  return py::dict("block"_a = block_facts(layout.block_rows, layout.block_columns),
                  "scale_per"_a = block_facts(layout.scale_per_rows, layout.scale_per_columns),
                  "scale_pad"_a = py::make_tuple(layout.scale_pad_rows, layout.scale_pad_columns),
                  "transposed"_a = layout.transposed != 0,
                  "scale_transposed"_a = layout.scale_transposed != 0,
                  "step"_a = py::make_tuple(step.rows, step.columns),
                  "element_bits"_a = layout.element_bits, "scale_bytes"_a = layout.scale_bytes);
}

// None where the spec says nothing of products.
py::object products_facts(const nc_products& products) {
  using namespace py::literals;
  if (products.input == nullptr) return py::none();
  py::list each;
  for (const nc_product& product : products.product) {
    const ProductKind& kind = kProductKinds[product.kind];
    each.append(py::make_tuple(product.kind, kind.name, kind.machines, product.reason));
  }
  return py::dict("input"_a = products.input, "gradient"_a = products.gradient,
                  "stochastic_gradient"_a = products.stochastic_gradient != 0,
                  "products"_a = py::tuple(each));
}

py::dict format_facts(const Plugin& plugin) {
  using namespace py::literals;
  const nc_format& format = plugin.format();
  py::list rules;
  for (const nc_rule& rule : format.rules)
    rules.append(py::make_tuple(rule.exact ? "exact" : "error", rule.text));
  return py::dict(
      "name"_a = format.name, "summary"_a = format.summary, "reference"_a = format.reference,
      "element"_a = format.element, "packing"_a = format.packing, "scale"_a = format.scale,
      "scale_dtype"_a = format.scale_dtype,
      "tensor_scale"_a = format.tensor_scale,  // None from a null pointer
      "scale_rule"_a = format.scale_rule, "amax"_a = format.amax,
      "rowwise"_a = usage_facts(format.rowwise), "columnwise"_a = usage_facts(format.columnwise),
      "columnwise_derived"_a = format.columnwise_derived != 0,
      "tensor_amax"_a = format.tensor_amax != 0, "row_step"_a = format.row_step,
      "shard_row_step"_a = format.shard_row_step, "group"_a = elements_per_group(format.rowwise),
      "mirrored"_a = mirrored(format.rowwise, format.columnwise),
      "bits_per_element"_a = format.bits_per_element,
      "wire_bits_per_element"_a = format.wire_bits_per_element, "rules"_a = py::tuple(rules),
      "matmul"_a = products_facts(format.products),
      "casts_parts"_a = plugin.table->cpu->cast_parts != nullptr,
      "cuda"_a = plugin.table->cuda != nullptr);
}

// Of the formats as they are loaded, in the order of nc_product_of.
py::tuple product_kinds(const Plugin& weight, const Plugin& input, const Plugin& gradient) {
  const Plugin* plugins[Factor::kCount] = {&weight, &input, &gradient};
  const auto operand = [&](const Factor& factor) {
    const nc_format& format = plugins[factor.of]->format();
    return ProductOperand{format.element, format.scale, format.tensor_scale != nullptr,
                          factor.columnwise ? mirror(format.columnwise) : format.rowwise};
  };
  py::tuple kinds(size_t{NC_PRODUCT_COUNT});
  for (size_t i = 0; i < kinds.size(); ++i)
    kinds[i] = static_cast<int>(kind_of(operand(kFactors[i][0]), operand(kFactors[i][1])));
  return kinds;
}

// A buffer's sizes as a tensor, by stored_shape() or used_shape().
template <Extent (*Shape)(const Plugin&, int, Extent)>
py::tuple sizes_of(const Plugin& plugin, int buffer, int64_t rows, int64_t columns) {
  const Extent shape = Shape(plugin, buffer, {rows, columns});
  return py::tuple(py::cast(tensor_sizes(plugin, buffer, shape)));
}

// Where a box of a matrix lies in a buffer: the first entry and their number along each dimension.
py::tuple stored_box(const Plugin& plugin, int buffer, int64_t row, int64_t rows, int64_t column,
                     int64_t columns) {
  const nc_layout& layout = plugin.layout(buffer);
  const Box box{{row, column}, {row + rows, column + columns}};
  const auto& [begin, end] = is_data(buffer) ? data_box(layout, box) : scale_box(layout, box);
  const auto along_rows = py::make_tuple(begin.rows, end.rows - begin.rows);
  if (spans_tensor(plugin, buffer)) return py::make_tuple(along_rows);
  return py::make_tuple(along_rows, py::make_tuple(begin.columns, end.columns - begin.columns));
}

}  // namespace

void bind_facts(py::module_& module) {
  py::register_exception<PluginError>(module, "PluginError", PyExc_RuntimeError)
      .attr("__module__") = "narrowcast";
  py::class_<Plugin>(module, "Plugin")
      .def_readonly("path", &Plugin::path)
      .def("facts", &format_facts)
      .def("buffer_shape", &sizes_of<stored_shape>)
      .def("used_shape", &sizes_of<used_shape>)
      .def("stored_box", &stored_box)
      .def("check_holds",
           [](const Plugin& plugin, const std::string& usage, int64_t rows, int64_t columns) {
             check_holds(plugin, usage_of(usage), rows, columns);
           });
  module.def("product_kinds", &product_kinds, py::arg("weight"), py::arg("input"),
             py::arg("gradient"), "The numbers of the kinds of a linear layer's products.");
  module.def(
      "load_plugin",
      [](const std::string& path) -> std::optional<Plugin> {
        const Plugin plugin{&load_plugin(path), path};
        if (format_of(*plugin.table).empty()) return {};
        return plugin;
      },
      "None where the file updates plain parameters, and so has no format.");
}

}  // namespace narrowcast
