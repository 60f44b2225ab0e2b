// The parameters of one optimizer that one launch updates: those of one format (or of none) on one
// device.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/tensors.hpp"
#include "runtime/optimizer/step.hpp"

namespace narrowcast {

// A step: prepare() of every table (reads gradients, checks everything, changes nothing); update()
// of every table; the caller's reduction of amaxes; finish() of the tables that have amaxes;
// commit().
class AdamTable {
 public:
  // No plugin: parameters that no format stores. `stochastic`: how codes are rounded.
  AdamTable(const Plugin* plugin, at::Device device, bool stochastic);

  // Adds a parameter with the optimizer's state of it: a dict with step, exp_avg, exp_avg_sq and,
  // where the parameter is not its own master, master; a quantized one has history, too, if its
  // scaling is delayed. Tensors may be DTensors. `seed`, `first`: of stochastic rounding, as in
  // nc_tensor.
  void add(const py::object& parameter, const std::string& name, int64_t group,
           const py::dict& state, uint64_t seed, uint64_t first);

  // False if the parameters' memory or state are no longer what the table was made from.
  // `inverse_scale` is 1 / grad_scale.
  bool prepare(const std::vector<AdamOptions>& groups, std::optional<double> inverse_scale);
  // `amax`: one float a parameter, for formats with a scale that spans the tensor.
  void update(const OptionalTensor& amax);
  // What waits for the amaxes of all shards: the cast, or the history's entry.
  void finish(const at::Tensor& amax);
  // Counts the step of every parameter that had a gradient.
  void commit();

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

 private:
  struct Parameter {
    // The entry of the state by this name, as a plain tensor. ValueError if there is none.
    at::Tensor take(const char* key);
    // Has is_current() see to a tensor of the table, if there is one.
    void remember(const at::Tensor& tensor);
    // Whether all that the table was made from is as it was. `local`: the parameter's local tensor.
    bool is_current(const py::object& local) const;

    py::object parameter;
    std::string name;
    int64_t group;
    py::dict state;
    bool sharded;              // a DTensor
    py::object held;           // the Bytes of a quantized parameter; null for others
    std::optional<Place> own;  // of a parameter that is not quantized
    std::vector<std::pair<py::str, py::object>> taken;
    std::vector<std::pair<at::Tensor, Place>> remembered;
    float* step;
    at::Tensor gradient;  // of the step being prepared
  };

  // The address of a tensor of the state, checked and remembered.
  void* checked_state(Parameter& row, const at::Tensor& tensor, at::ScalarType dtype,
                      at::IntArrayRef shape, const char* key) const;
  nc_tensor entry_of_bytes(Parameter& row, const Bytes& bytes, at::IntArrayRef shape) const;
  nc_tensor entry_of_plain(Parameter& row, const at::Tensor& local) const;
  void read_gradient(Parameter& row, nc_step& step, const at::Tensor& local,
                     int64_t elements) const;
  void launch(nc_function function, const char* what, const OptionalTensor& amax);

  const Plugin* plugin_;
  at::Device device_;
  const nc_machine& machine_;
  bool stochastic_;
  std::vector<Parameter> rows_;
  std::vector<nc_tensor> tensors_;
  std::vector<nc_step> steps_;
  int64_t tiles_ = 0;  // of all parameters; 0 before the first launch
  Table<nc_tensor> tensor_table_;
  Table<nc_step> step_table_;
};

}  // namespace narrowcast
