// Casts over lists of matrices of one format on one device, and what goes with them.
#include <ATen/ops/zeros.h>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"

namespace narrowcast {
namespace {

using Matrices = std::vector<std::shared_ptr<Bytes>>;
using Values = std::vector<at::Tensor>;
// What the random words of a matrix are a function of: seed, step, and the index of its first
// element in the whole tensor.
using RandomKey = std::tuple<uint64_t, uint64_t, uint64_t>;

std::vector<nc_tensor> entries_of(const Matrices& matrices, const Values& values) {
  if (values.size() != matrices.size())
    value_error(values.size(), " values for ", matrices.size(), " matrices");
  std::vector<nc_tensor> entries;
  entries.reserve(matrices.size());
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Bytes& matrix = *matrices[i];
    nc_tensor& entry = entries.emplace_back(matrix.entry());
    entry.value_dtype = checked_dtype(values[i].scalar_type(), "the value");
    check_run(values[i], matrix.rows * matrix.columns, matrix.device, "the value");
    entry.value = address_of(values[i], "the value");
  }
  return entries;
}

// The largest magnitude of each value, float32; None in formats without a scale that spans the
// tensor. `skip`: a float; if it is not 0 when the kernel runs, all are 0.
OptionalTensor find_amaxes(const Matrices& matrices, const Values& values, bool source_bf16,
                           const OptionalTensor& skip) {
  if (matrices.empty() || !matrices[0]->facts().tensor_amax) return std::nullopt;
  const at::Device device = matrices[0]->device;
  const nc_machine& machine = matrices[0]->plugin.machine(device);
  at::Tensor amaxes =
      at::zeros({std::ssize(matrices)}, at::TensorOptions().dtype(at::kFloat).device(device));
  nc_launch options{};
  options.amax = static_cast<float*>(amaxes.mutable_data_ptr());
  options.source_bf16 = source_bf16;
  if (skip) options.found_inf = checked_floats(*skip, 1, device, "the flag");
  std::vector<nc_tensor> entries = entries_of(matrices, values);
  run(machine.reduce_amax, "the amax", machine, entries, device, options);
  return amaxes;
}

void cast(const Matrices& matrices, const Values& values, const OptionalTensor& amaxes,
          bool source_bf16, const std::optional<std::vector<RandomKey>>& draws) {
  if (matrices.empty()) return;
  const nc_format& facts = matrices[0]->facts();
  const at::Device device = matrices[0]->device;
  const nc_machine& machine = matrices[0]->plugin.machine(device);
  nc_launch options{};
  options.source_bf16 = source_bf16;
  if (amaxes)
    options.amax = checked_floats(*amaxes, std::ssize(matrices), device, "the tensor of amaxes");
  std::vector<nc_tensor> entries = entries_of(matrices, values);
  if (machine.start_history == nullptr) {
    if (facts.tensor_amax && !amaxes)
      value_error("format ", facts.name, " has a scale that spans the tensor: its amax is needed");
  } else {
    for (const nc_tensor& entry : entries) {
      if (entry.history == nullptr) value_error("a matrix has no history");
    }
    // Without new amaxes the bytes are made again with the multiplier that the history holds.
    if (amaxes) run(machine.start_history, "starting a history", machine, entries, device, options);
  }
  if (draws) {
    if (draws->size() != entries.size())
      value_error(draws->size(), " draws for ", entries.size(), " matrices");
    for (size_t i = 0; i < entries.size(); ++i)
      std::tie(entries[i].seed, entries[i].step, entries[i].first) = (*draws)[i];
    options.stochastic = true;
  }
  run(machine.cast, "the cast", machine, entries, device, options);
}

// The same matrix with the columnwise bytes that follow from its rowwise ones, in memory of their
// own.
std::shared_ptr<Bytes> with_columnwise(const Bytes& rowwise) {
  if (!rowwise.facts().columnwise_derived)
    value_error("format ", rowwise.facts().name,
                " quantizes columnwise from the master; it cannot be derived from rowwise");
  if (!rowwise.has(0)) value_error("a matrix has no rowwise bytes");
  const auto made = Bytes::allocate(rowwise.format, rowwise.rows, rowwise.columns, {"columnwise"},
                                    rowwise.device);
  const auto both = std::make_shared<Bytes>(
      rowwise.format, rowwise.rows, rowwise.columns,
      Bytes::Buffers{rowwise.buffers[0], rowwise.buffers[1], made->buffers[2], made->buffers[3]},
      rowwise.amax, rowwise.history);
  if (!both->is_plain) return both;  // on meta, or in a trace: shapes alone
  const nc_machine& machine = rowwise.plugin.machine(rowwise.device);
  nc_tensor entry = both->entry();
  run(machine.derive_columnwise, "deriving columnwise", machine, {&entry, 1}, rowwise.device);
  return both;
}

}  // namespace

void bind_quantize(py::module_& module) {
  module.def("find_amaxes", &find_amaxes, py::arg("matrices"), py::arg("values"),
             py::arg("source_bf16") = false, py::arg("skip") = py::none(),
             "The largest magnitude of each value, float32 [matrices]; None where no scale spans "
             "the tensor. skip: a float32; if it is not 0 when the kernel runs, all are 0.");
  module.def(
      "cast", &cast, py::arg("matrices"), py::arg("values"), py::arg("amaxes"),
      py::arg("source_bf16") = false, py::arg("draws") = py::none(),
      "Makes the bytes of each matrix from its value [rows, columns]. amaxes: of the whole "
      "tensors; a negative one leaves its matrix as it is; None where none is needed, or where "
      "a delayed scale stays as it is. draws: "
      "(seed, step, first) of each for stochastic rounding.");
  module.def("with_columnwise", &with_columnwise,
             "The matrix with the columnwise bytes that follow from the rowwise ones.");
}

}  // namespace narrowcast
