// Casts over lists of matrices of one format on one device, and what goes with them.
#include "bindings/core/buffers.hpp"
#include "bindings/core/changes.hpp"
#include "bindings/core/launch.hpp"
#include "bindings/core/module.hpp"
#include "bindings/core/peers.hpp"

namespace narrowcast {
namespace {

// Matrices of one format on one device, each with the value that its bytes come from. They may be
// cast again and again.
class CastList {
 public:
  CastList(std::vector<std::shared_ptr<Buffers>> matrices, std::vector<at::Tensor> values)
      : matrices_(std::move(matrices)),
        values_(std::move(values)),
        table_(first().plugin.machine(first().device), first().device) {}

  OptionalTensor find_amaxes(bool source_bf16, const OptionalTensor& into) {
    if (!first().facts().tensor_amax) return std::nullopt;
    at::Tensor amaxes = into ? *into : zeros_of(std::ssize(matrices_), table_.device());
    nc_launch options{};
    options.amax = one_each(amaxes, "the tensor of amaxes");
    options.source_bf16 = source_bf16;
    assign();
    table_.run(table_.machine().reduce_amax, "the amax", options);
    return amaxes;
  }

  void cast(const OptionalTensor& amaxes, bool source_bf16,
            const std::optional<std::vector<RandomKey>>& draws, const OptionalTensor& skip) {
    nc_launch options{};
    options.source_bf16 = source_bf16;
    options.stochastic = draws.has_value();
    if (amaxes) options.amax = one_each(*amaxes, "the tensor of amaxes");
    if (skip) options.verdict = one_each(*skip, "which to skip");
    const nc_function start_history = table_.machine().start_history;
    assign(draws);
    note_write();
    // Without new amaxes the bytes are made again with the multiplier that the history holds.
    if (start_history != nullptr && amaxes)
      table_.run(start_history, "starting a history", options);
    table_.run(table_.machine().cast, "the cast", options);
  }

 private:
  const Buffers& first() const { return *matrices_[0]; }

  void assign(const std::optional<std::vector<RandomKey>>& draws = {}) {
    std::vector<nc_tensor> entries;
    entries.reserve(matrices_.size());
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Buffers& matrix = *matrices_[i];
      nc_tensor& entry = entries.emplace_back(matrix.entry());
      entry.value_dtype = checked_dtype(values_[i].scalar_type(), "the value");
      check_run(values_[i], matrix.rows * matrix.columns, matrix.device, "the value");
      entry.value = address_of(values_[i], "the value");
      if (draws) std::tie(entry.seed, entry.step, entry.first) = draws->at(i);
    }
    table_.assign(std::move(entries));
  }

  float* one_each(const at::Tensor& tensor, const char* what) const {
    return checked_floats(tensor, std::ssize(matrices_), table_.device(), what);
  }

  std::vector<std::shared_ptr<Buffers>> matrices_;
  std::vector<at::Tensor> values_;
  MatrixTable table_;
};

// The columnwise bytes of matrices of one format on one device, which have room for them.
void derive_columnwise(const std::vector<std::shared_ptr<Buffers>>& matrices) {
  if (matrices.empty()) return;
  const nc_machine& machine = matrices[0]->plugin.machine(matrices[0]->device);
  std::vector<nc_tensor> entries;
  entries.reserve(matrices.size());
  for (const std::shared_ptr<Buffers>& matrix : matrices) entries.push_back(matrix->entry());
  MatrixTable table(machine, matrices[0]->device);
  table.assign(std::move(entries), machine.derive_columnwise);
  table.run(machine.derive_columnwise, "deriving columnwise");
}

// The same matrix with the columnwise bytes that follow from its rowwise ones, in memory of their
// own.
std::shared_ptr<Buffers> with_columnwise(const Buffers& rowwise) {
  const auto made = Buffers::allocate(rowwise.format, rowwise.rows, rowwise.columns, {"columnwise"},
                                      rowwise.device);
  const auto both = std::make_shared<Buffers>(
      rowwise.format, rowwise.rows, rowwise.columns,
      Buffers::Tensors{rowwise.buffers[0], rowwise.buffers[1], made->buffers[2], made->buffers[3]},
      rowwise.amax, rowwise.history);
  if (!both->is_plain) return both;  // on meta, or in a trace: shapes alone
  derive_columnwise({both});
  return both;
}

}  // namespace

void bind_quantize(py::module_& module) {
  py::class_<CastList>(module, "CastList",
                       "Matrices of one format on one device, and the value [rows, columns] of "
                       "each, to be cast once or many times.")
      .def(py::init<std::vector<std::shared_ptr<Buffers>>, std::vector<at::Tensor>>(),
           py::arg("matrices"), py::arg("values"))
      .def("find_amaxes", &CastList::find_amaxes, py::arg("source_bf16") = false,
           py::arg("into") = py::none(),
           "The largest magnitude of each value, float32 [matrices]; None where no scale spans the "
           "tensor. into: where to, of what is there and those the larger.")
      .def("cast", &CastList::cast, py::arg("amaxes"), py::arg("source_bf16") = false,
           py::arg("draws") = py::none(), py::arg("skip") = py::none(),
           "Makes the bytes of each matrix from its value. amaxes: float32 [matrices], of the "
           "whole tensors; None where none is needed, or where a delayed scale stays as it is. "
           "draws: (seed, step, first) of each for stochastic rounding. skip: float32 "
           "[matrices]; where it is negative, the matrix stays as it is.");
  py::class_<Peers, std::shared_ptr<Peers>>(
      module, "Peers",
      "Matrices of a launch whose scale of the tensor is one. places[i]: those that share that of "
      "matrix i, itself among them; equally many of each.")
      .def(py::init<const std::vector<std::vector<int64_t>>&, at::Device>(), py::arg("places"),
           py::arg("device"))
      .def("share", &Peers::share, py::arg("amaxes"),
           "Amaxes, float32 [matrices], become the largest of each one's peers: two launches.");
  module.def("derive_columnwise", &derive_columnwise, py::arg("matrices"),
             "Writes the columnwise buffers of matrices of one format on one device from the "
             "rowwise ones, in one launch.");
  module.def("copy_floats", &copy_floats, py::arg("to"), py::arg("source"),
             "Elements of a float32 tensor into one of as many on the same device.");
  module.def("with_columnwise", &with_columnwise,
             "The matrix with the columnwise bytes that follow from the rowwise ones.");
}

}  // namespace narrowcast
