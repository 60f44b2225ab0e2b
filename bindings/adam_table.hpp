// The parameters of one optimizer that one launch updates: those of one format (or of none) on one
// device.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/tensors.hpp"
#include "runtime/optimizer/step.hpp"

namespace narrowcast {

namespace py = pybind11;

// The state of one parameter.
struct AdamState {
  at::Tensor step;     // 0-dim float32 on the CPU
  at::Tensor exp_avg;  // float32 or bfloat16, contiguous
  at::Tensor exp_avg_sq;
};

// A step: prepare() of every table (reads gradients, checks everything, changes nothing); update()
// of every table; the caller's reduction of amaxes; finish() of the tables that have amaxes;
// commit().
class AdamTable {
 public:
  // No plugin: parameters that no format stores. `stochastic`: how codes are rounded.
  AdamTable(std::optional<Plugin> plugin, at::Device device, bool stochastic);

  // `owner` is the object that holds the parameter's bytes: another one in its place means that the
  // table is out of date. `seed`, `first`: of stochastic rounding, as in nc_tensor.
  void add_quantized(const py::object& parameter, const std::string& name, int64_t group,
                     const AdamState& state, const py::object& owner, const Matrix& matrix,
                     uint64_t seed, uint64_t first);
  // `master` is None for a float32 parameter, which is its own.
  void add_plain(const py::object& parameter, const std::string& name, int64_t group,
                 const AdamState& state, const std::optional<at::Tensor>& master);

  // False if a parameter's memory is no longer what the table says. `inverse_scale` is 1 /
  // grad_scale.
  bool prepare(const std::vector<AdamOptions>& groups, std::optional<double> inverse_scale);
  // `amax`: one float a parameter, for formats with a scale that spans the tensor.
  void update(const std::optional<at::Tensor>& amax, int64_t stream);
  // What waits for the amaxes of all shards: the cast, or the history's entry.
  void finish(const at::Tensor& amax, int64_t stream);
  // Counts the step of every parameter that had a gradient.
  void commit();

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

 private:
  struct Row {
    py::object parameter;
    py::object owner;  // None for a plain parameter
    std::string name;
    int64_t group;
    bool sharded;          // a DTensor
    at::ScalarType dtype;  // of a plain parameter
    AdamState state;
    std::vector<std::pair<at::Tensor, void*>> memory;  // what the row keeps, and where it was
    at::Tensor gradient;                               // of the step being prepared
  };

  Row& add(const py::object& parameter, const std::string& name, int64_t group,
           const AdamState& state, int64_t rows, int64_t columns);
  bool is_current(const Row& row, const nc_tensor& entry, const py::object& local) const;
  void read_gradient(Row& row, nc_step& step, const at::Tensor& local, int64_t elements) const;
  void launch(nc_function function, const char* what, const std::optional<at::Tensor>& amax,
              int64_t stream);
  void upload();

  std::optional<Plugin> plugin_;
  at::Device device_;
  const nc_machine& machine_;
  bool stochastic_;
  std::vector<Row> rows_;
  std::vector<nc_tensor> tensors_;
  std::vector<nc_step> steps_;
  int64_t tiles_ = 0;
  at::Tensor device_tensors_;  // the tables in the GPU's memory; undefined until the first launch
  at::Tensor device_steps_;
};

}  // namespace narrowcast
