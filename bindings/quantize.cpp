// Casts, their reverse, and what goes with them, over lists of matrices of one format on one
// device.
#include "bindings/errors.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {
namespace {

using Matrices = std::vector<Matrix>;
// What the random words of a matrix are a function of: seed, step, and the index of its first
// element in the whole tensor.
using Draw = std::tuple<uint64_t, uint64_t, uint64_t>;

// A kernel reads and writes what its function is about without asking; so what is missing is
// refused here.
void check_values(const Matrices& matrices) {
  for (const Matrix& matrix : matrices) {
    if (!std::get<2>(matrix)) value_error("a matrix has no value");
  }
}

void check_usage(const Matrices& matrices, int data, const char* usage) {
  for (const auto& [rows, columns, value, buffers, amax, history] : matrices) {
    if (!buffers[data] || !buffers[data + 1]) value_error("a matrix has no ", usage, " bytes");
  }
}

void check_histories(const Matrices& matrices) {
  for (const Matrix& matrix : matrices) {
    if (!std::get<5>(matrix)) value_error("a matrix has no history, which delayed scaling needs");
  }
}

LaunchOptions with_amax(const Plugin& plugin, const std::optional<at::Tensor>& amax,
                        const Matrices& matrices, at::Device device) {
  LaunchOptions options;
  if (!plugin.format().tensor_amax) return options;
  if (!amax)
    value_error("format ", plugin.format().name,
                " has a scale that spans the tensor: its amax is needed");
  checked_floats(*amax, static_cast<int64_t>(matrices.size()), device, "the tensor of amaxes");
  options.amax = amax;
  return options;
}

void reduce_amax(const Plugin& plugin, const Matrices& matrices, const at::Tensor& amax,
                 bool source_bf16, int64_t stream) {
  const at::Device device = amax.device();
  const nc_machine& machine = plugin.machine(device);
  check_values(matrices);
  LaunchOptions options = with_amax(plugin, amax, matrices, device);
  if (!options.amax)
    value_error("format ", plugin.format().name, " has no scale that spans the tensor, so no amax");
  options.source_bf16 = source_bf16;
  options.stream = stream;
  run(machine.reduce_amax, "the amax", machine, describe(plugin, matrices, device), device,
      options);
}

void start_history(const Plugin& plugin, const Matrices& matrices, const at::Tensor& amax,
                   int64_t stream) {
  const at::Device device = amax.device();
  const nc_machine& machine = plugin.machine(device);
  if (machine.start_history == nullptr)
    value_error("format ", plugin.format().name, " is not scaled by a history");
  check_histories(matrices);
  LaunchOptions options = with_amax(plugin, amax, matrices, device);
  options.stream = stream;
  run(machine.start_history, "starting a history", machine, describe(plugin, matrices, device),
      device, options);
}

void cast(const Plugin& plugin, const Matrices& matrices, const std::optional<at::Tensor>& amax,
          bool source_bf16, const std::optional<std::vector<Draw>>& draws, int64_t stream) {
  const at::Device device = device_of(matrices);
  const nc_machine& machine = plugin.machine(device);
  check_values(matrices);
  LaunchOptions options;
  if (machine.start_history != nullptr) {
    check_histories(matrices);
  } else {
    options = with_amax(plugin, amax, matrices, device);
  }
  options.source_bf16 = source_bf16;
  options.stream = stream;
  std::vector<nc_tensor> entries = describe(plugin, matrices, device);
  if (draws) {
    if (draws->size() != entries.size())
      value_error(draws->size(), " draws for ", entries.size(), " matrices");
    for (size_t i = 0; i < entries.size(); ++i)
      std::tie(entries[i].seed, entries[i].step, entries[i].first) = (*draws)[i];
    options.stochastic = true;
  }
  run(machine.cast, "the cast", machine, std::move(entries), device, options);
}

void derive_columnwise(const Plugin& plugin, const Matrices& matrices, int64_t stream) {
  const at::Device device = device_of(matrices);
  const nc_machine& machine = plugin.machine(device);
  if (machine.derive_columnwise == nullptr) {
    value_error("format ", plugin.format().name,
                " quantizes columnwise from the master; it cannot be derived from rowwise");
  }
  check_usage(matrices, NC_ROWWISE_DATA, "rowwise");
  check_usage(matrices, NC_COLUMNWISE_DATA, "columnwise");
  LaunchOptions options;
  options.stream = stream;
  run(machine.derive_columnwise, "deriving columnwise", machine, describe(plugin, matrices, device),
      device, options);
}

void dequantize(const Plugin& plugin, bool columnwise, const Matrices& matrices, int64_t stream) {
  const at::Device device = device_of(matrices);
  const nc_machine& machine = plugin.machine(device);
  check_values(matrices);
  check_usage(matrices, columnwise ? NC_COLUMNWISE_DATA : NC_ROWWISE_DATA,
              columnwise ? "columnwise" : "rowwise");
  LaunchOptions options;
  options.stream = stream;
  run(columnwise ? machine.dequantize_columnwise : machine.dequantize_rowwise, "dequantizing",
      machine, describe(plugin, matrices, device), device, options);
}

}  // namespace

void bind_quantize(py::module_& module) {
  module.def("reduce_amax", &reduce_amax,
             "amax[i] = max(amax[i], largest magnitude of matrix i's value)");
  module.attr("HISTORY_FLOATS") = kHistoryFloats;
  module.def("start_history", &start_history,
             "begins the history of each matrix with its amax, for the cast that follows");
  module.def("cast", &cast,
             "value -> buffers (and stored amax) of each matrix; amax: one float a matrix, or None "
             "where none is needed; draws: (seed, step, first) of each for stochastic rounding");
  module.def("derive_columnwise", &derive_columnwise, "rowwise buffers -> columnwise buffers");
  module.def("dequantize", &dequantize, "buffers of one usage -> value");
}

}  // namespace narrowcast
