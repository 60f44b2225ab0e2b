// Casts over lists of matrices of one format on one device, and what goes with them.
#include <ATen/ops/zeros.h>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "bindings/tensors.hpp"

namespace narrowcast {
namespace {

// What the random words of a matrix are a function of: seed, step, and the index of its first
// element in the whole tensor.
using RandomKey = std::tuple<uint64_t, uint64_t, uint64_t>;

// Matrices of one format on one device, each with the value that its bytes come from. They may be
// cast again and again: addresses are those of each time.
class CastList {
 public:
  CastList(std::vector<std::shared_ptr<Bytes>> matrices, std::vector<at::Tensor> values);
  std::optional<at::Tensor> find_amaxes(bool source_bf16, const std::optional<at::Tensor>& into,
                                        const std::optional<at::Tensor>& skip);
  void cast(const std::optional<at::Tensor>& amaxes, bool source_bf16,
            const std::optional<std::vector<RandomKey>>& draws,
            const std::optional<at::Tensor>& verdict);

 private:
  std::vector<nc_tensor> entries() const;
  float* floats(const at::Tensor& tensor, const char* what) const;
  void check_histories() const;
  const nc_machine& machine() const { return table_.machine(); }
  const nc_format& facts() const { return matrices_[0]->facts(); }
  at::Device device() const { return table_.device(); }

  std::vector<std::shared_ptr<Bytes>> matrices_;
  std::vector<at::Tensor> values_;
  MatrixTable table_;
};

const Bytes& first_of(const std::vector<std::shared_ptr<Bytes>>& matrices) {
  if (matrices.empty()) value_error("there is no matrix to cast");
  return *matrices[0];
}

CastList::CastList(std::vector<std::shared_ptr<Bytes>> matrices, std::vector<at::Tensor> values)
    : matrices_(std::move(matrices)),
      values_(std::move(values)),
      table_(first_of(matrices_).plugin().machine(first_of(matrices_).device()),
             first_of(matrices_).device()) {
  if (values_.size() != matrices_.size())
    value_error(values_.size(), " values for ", matrices_.size(), " matrices");
}

std::vector<nc_tensor> CastList::entries() const {
  std::vector<nc_tensor> entries;
  entries.reserve(matrices_.size());
  for (size_t i = 0; i < matrices_.size(); ++i) {
    nc_tensor& entry = entries.emplace_back(matrices_[i]->entry());
    entry.value_dtype = checked_dtype(values_[i].scalar_type(), "the value");
    entry.value = checked_address(values_[i], values_[i].scalar_type(), matrices_[i]->elements(),
                                  device(), "the value");
  }
  return entries;
}

// One float a matrix.
float* CastList::floats(const at::Tensor& tensor, const char* what) const {
  return static_cast<float*>(
      checked_address(tensor, at::kFloat, std::ssize(matrices_), device(), what));
}

std::optional<at::Tensor> CastList::find_amaxes(bool source_bf16,
                                                const std::optional<at::Tensor>& into,
                                                const std::optional<at::Tensor>& skip) {
  if (!facts().tensor_amax) return std::nullopt;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device());
  at::Tensor amaxes = into ? *into : at::zeros({std::ssize(matrices_)}, options);
  nc_launch launch{};
  launch.amax = floats(amaxes, "the tensor of amaxes");
  launch.source_bf16 = source_bf16;
  if (skip)
    launch.found_inf = static_cast<const float*>(
        checked_address(*skip, at::kFloat, 1, device(), "the flag to skip"));
  table_.assign(entries());
  table_.run(machine().reduce_amax, "the amax", launch);
  return amaxes;
}

void CastList::check_histories() const {
  for (const auto& matrix : matrices_) {
    if (!matrix->history().defined()) value_error("a matrix has no history");
  }
}

void CastList::cast(const std::optional<at::Tensor>& amaxes, bool source_bf16,
                    const std::optional<std::vector<RandomKey>>& draws,
                    const std::optional<at::Tensor>& verdict) {
  std::vector<nc_tensor> matrices = entries();
  nc_launch launch{};
  launch.source_bf16 = source_bf16;
  launch.stochastic = draws.has_value();
  if (amaxes) launch.amax = floats(*amaxes, "the tensor of amaxes");
  if (verdict) launch.verdict = floats(*verdict, "the verdict");
  if (draws) {
    if (draws->size() != matrices.size())
      value_error(draws->size(), " draws for ", matrices.size(), " matrices");
    for (size_t i = 0; i < matrices.size(); ++i)
      std::tie(matrices[i].seed, matrices[i].step, matrices[i].first) = (*draws)[i];
  }
  table_.assign(std::move(matrices));
  if (machine().start_history != nullptr) {
    check_histories();
    // Without new amaxes the bytes are made again with the multiplier that the history holds.
    if (amaxes) table_.run(machine().start_history, "starting a history", launch);
  } else if (facts().tensor_amax && !amaxes) {
    value_error("format ", facts().name, " has a scale that spans the tensor: its amax is needed");
  }
  table_.run(machine().cast, "the cast", launch);
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
  MatrixTable table(machine, rowwise->device());
  table.assign({both->entry()});
  table.run(machine.derive_columnwise, "deriving columnwise", {});
  return both;
}

}  // namespace

void bind_quantize(py::module_& module) {
  py::class_<CastList>(module, "CastList",
                       "Matrices of one format on one device, and the value [rows, columns] of "
                       "each, to be cast once or many times.")
      .def(py::init<std::vector<std::shared_ptr<Bytes>>, std::vector<at::Tensor>>(),
           py::arg("matrices"), py::arg("values"))
      .def("find_amaxes", &CastList::find_amaxes, py::arg("source_bf16") = false,
           py::arg("into") = py::none(), py::arg("skip") = py::none(),
           "The largest magnitude of each value, float32 [matrices]; None where no scale spans the "
           "tensor. into: where to, of what is there and those the larger. skip: a float32; if it "
           "is not 0 when the kernel runs, nothing is found.")
      .def("cast", &CastList::cast, py::arg("amaxes"), py::arg("source_bf16") = false,
           py::arg("draws") = py::none(), py::arg("verdict") = py::none(),
           "Makes the bytes of each matrix from its value. amaxes: float32 [matrices], of the "
           "whole tensors; None where none is needed, or where a delayed scale stays as it is. "
           "draws: (seed, step, first) of each for stochastic rounding. verdict: float32 "
           "[matrices]; where it is negative, the matrix stays as it is.");
  module.def("with_columnwise", &with_columnwise,
             "The matrix with the columnwise bytes that follow from the rowwise ones.");
}

}  // namespace narrowcast
