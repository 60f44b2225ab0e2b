// The parameters of one optimizer that one launch updates: those of one format (or of none) on one
// device.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
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
  void update(const std::optional<at::Tensor>& amax);
  // What waits for the amaxes of all shards: the cast, or the history's entry.
  void finish(const at::Tensor& amax);
  // Counts the step of every parameter that had a gradient.
  void commit();

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

 private:
  struct Memory {
    at::Tensor tensor;
    const void* address;  // where it was
    int64_t elements;     // and what it was
    at::ScalarType dtype;
  };
  static Memory remembered(const at::Tensor& tensor, const void* address);
  struct StateItem {
    py::object key, value;  // of the state
  };
  struct Parameter {
    py::object parameter;
    bool sharded;     // a DTensor
    py::object held;  // the Bytes of a quantized parameter; None for others
    at::ScalarType dtype;
    std::string name;
    int64_t group;
    py::dict state;
    std::vector<StateItem> entries;
    std::vector<Memory> memory;
    float* step;
    at::Tensor gradient;  // of the step being prepared
  };

  // The entry of the state by this name, as a plain tensor. ValueError if there is none.
  at::Tensor take(Parameter& row, const char* key);
  void add_quantized(Parameter& row, nc_tensor& entry, const Bytes& bytes, at::IntArrayRef shape);
  void add_plain(Parameter& row, nc_tensor& entry, const at::Tensor& local);
  bool is_current(const Parameter& row, const nc_tensor& entry, const py::object& local) const;
  void read_gradient(Parameter& row, nc_step& step, const at::Tensor& local,
                     int64_t elements) const;
  void launch(nc_function function, const char* what, const std::optional<at::Tensor>& amax) const;

  const Plugin* plugin_;
  at::Device device_;
  const nc_machine& machine_;
  bool stochastic_;
  std::vector<Parameter> rows_;
  std::vector<nc_tensor> tensors_;
  std::vector<nc_step> steps_;
  MatrixTable table_;
  at::Tensor device_steps_;  // a copy in the GPU's memory; undefined where it needs none
};

}  // namespace narrowcast
