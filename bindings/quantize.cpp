// Casts over lists of matrices of one format on one device, and what goes with them.
#include <ATen/ops/zeros.h>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {
namespace {

using Matrices = std::vector<std::shared_ptr<Bytes>>;
using Values = std::vector<at::Tensor>;
// What the random words of a matrix are a function of: seed, step, and the index of its first
// element in the whole tensor.
using RandomKey = std::tuple<uint64_t, uint64_t, uint64_t>;

std::vector<nc_tensor> entries_of(const Matrices& matrices) {
  std::vector<nc_tensor> entries;
  entries.reserve(matrices.size());
  for (const auto& matrix : matrices) entries.push_back(matrix->entry());
  return entries;
}

std::vector<nc_tensor> entries_of(const Matrices& matrices, const Values& values) {
  if (values.size() != matrices.size())
    value_error(values.size(), " values for ", matrices.size(), " matrices");
  std::vector<nc_tensor> entries = entries_of(matrices);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].value_dtype = checked_dtype(values[i].scalar_type(), "the value");
    entries[i].value = checked_address(values[i], values[i].scalar_type(), matrices[i]->elements(),
                                       matrices[i]->device(), "the value");
  }
  return entries;
}

float* amaxes_of(const at::Tensor& amaxes, const Matrices& matrices) {
  return static_cast<float*>(checked_address(amaxes, at::kFloat,
                                             static_cast<int64_t>(matrices.size()),
                                             matrices[0]->device(), "the tensor of amaxes"));
}

// The largest magnitude of each value, float32; None in formats without a scale that spans the
// tensor. `skip`: a float; if it is not 0 when the kernel runs, all are 0.
std::optional<at::Tensor> find_amaxes(const Matrices& matrices, const Values& values,
                                      bool source_bf16, const std::optional<at::Tensor>& skip) {
  if (matrices.empty() || !matrices[0]->facts().tensor_amax) return std::nullopt;
  const Bytes& first = *matrices[0];
  const nc_machine& machine = first.plugin().machine(first.device());
  at::Tensor amaxes = at::zeros({static_cast<int64_t>(matrices.size())},
                                at::TensorOptions().dtype(at::kFloat).device(first.device()));
  LaunchOptions options;
  options.amax = amaxes_of(amaxes, matrices);
  options.source_bf16 = source_bf16;
  if (skip)
    options.skip = static_cast<const float*>(
        checked_address(*skip, at::kFloat, 1, first.device(), "the flag"));
  std::vector<nc_tensor> entries = entries_of(matrices, values);
  run(machine.reduce_amax, "the amax", machine, entries.data(), std::ssize(entries), first.device(),
      options);
  return amaxes;
}

void cast(const Matrices& matrices, const Values& values, const std::optional<at::Tensor>& amaxes,
          bool source_bf16, const std::optional<std::vector<RandomKey>>& draws) {
  if (matrices.empty()) return;
  const Bytes& first = *matrices[0];
  const nc_machine& machine = first.plugin().machine(first.device());
  LaunchOptions options;
  options.source_bf16 = source_bf16;
  if (amaxes) options.amax = amaxes_of(*amaxes, matrices);
  std::vector<nc_tensor> entries = entries_of(matrices, values);
  if (machine.start_history == nullptr) {
    if (first.facts().tensor_amax && !amaxes)
      value_error("format ", first.facts().name,
                  " has a scale that spans the tensor: its amax is needed");
  } else {
    for (const auto& matrix : matrices) {
      if (!matrix->history().defined()) value_error("a matrix has no history");
    }
    // Without new amaxes the bytes are made again with the multiplier that the history holds.
    if (amaxes)
      run(machine.start_history, "starting a history", machine, entries.data(), std::ssize(entries),
          first.device(), options);
  }
  if (draws) {
    if (draws->size() != entries.size())
      value_error(draws->size(), " draws for ", entries.size(), " matrices");
    for (size_t i = 0; i < entries.size(); ++i)
      std::tie(entries[i].seed, entries[i].step, entries[i].first) = (*draws)[i];
    options.stochastic = true;
  }
  run(machine.cast, "the cast", machine, entries.data(), std::ssize(entries), first.device(),
      options);
}

// The same matrix with the columnwise bytes that follow from its rowwise ones, in memory of their
// own.
std::shared_ptr<Bytes> with_columnwise(const std::shared_ptr<Bytes>& rowwise) {
  const nc_format& facts = rowwise->facts();
  if (!facts.columnwise_derived)
    value_error("format ", facts.name,
                " quantizes columnwise from the master; it cannot be derived from rowwise");
  if (!rowwise->has(0)) value_error("a matrix has no rowwise bytes");
  const auto made = Bytes::allocate(rowwise->format(), rowwise->rows(), rowwise->columns(),
                                    {"columnwise"}, rowwise->device());
  auto both = std::make_shared<Bytes>(
      rowwise->format(), rowwise->rows(), rowwise->columns(),
      Bytes::Given{rowwise->buffer(0), rowwise->buffer(1), made->buffer(2), made->buffer(3)},
      given(rowwise->amax()), given(rowwise->history()));
  if (!both->is_plain()) return both;  // on meta, or in a trace: shapes alone
  const nc_machine& machine = rowwise->plugin().machine(rowwise->device());
  nc_tensor entry = both->entry();
  run(machine.derive_columnwise, "deriving columnwise", machine, &entry, 1, rowwise->device(), {});
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
