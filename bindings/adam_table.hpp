// The parameters of one optimizer that one launch updates: those of one format (or of none) on one
// device.
#pragma once

#include "bindings/adam_parameter.hpp"
#include "bindings/launch.hpp"
#include "runtime/optimizer/step.hpp"

namespace narrowcast {

// A step: prepare() of every table (reads gradients, checks everything, changes nothing); update();
// the caller's reduction of amaxes; finish() where there are amaxes; commit().
class AdamTable {
 public:
  // No plugin: parameters that no format stores. `stochastic`: how codes are rounded.
  AdamTable(const Plugin* plugin, at::Device device, bool stochastic);

  // Adds a parameter of an option group with the optimizer's state of it; a quantized one has
  // history, too, if its scaling is delayed. `seed`, `first`: of stochastic rounding, as in
  // nc_tensor.
  void add(const py::object& parameter, const std::string& name, int64_t group,
           const py::dict& state, uint64_t seed, uint64_t first) {
    const bool delayed = machine().record_amax != nullptr;
    parameters_.emplace_back(parameter, name, state, table_.device(), delayed, seed, first);
    groups_.push_back(group);
    steps_.emplace_back();
  }

  // False if the parameters' memory or state are no longer what the table was made from.
  bool prepare(const std::vector<AdamOptions>& groups, std::optional<double> grad_scale) {
    int64_t made_for_group = -1, made_for_t = -1;
    nc_step made{};
    for (size_t i = 0; i < parameters_.size(); ++i) {
      AdamParameter& parameter = parameters_[i];
      const py::object local = parameter.local();
      if (!parameter.is_current(local)) return false;
      const int64_t t = parameter.next_step();
      if (groups_[i] != made_for_group || t != made_for_t) {
        AdamOptions options = groups[groups_[i]];
        options.grad_scale = grad_scale.value_or(1.0);
        made = make_step(options, t);
        made.scaled = grad_scale.has_value();
        made_for_group = groups_[i];
        made_for_t = t;
      }
      steps_[i] = made;
      parameter.read_gradient(THPVariable_Unpack(local.ptr()), steps_[i]);
    }
    return true;
  }

  // `amax`: one float a parameter, for formats with a scale that spans the tensor.
  void update(const OptionalTensor& amax) {
    if (parameters_.empty()) return;
    if (table_.size() != size()) table_.assign(entries());  // they change only when some are added
    step_table_ = {steps_, table_.device()};
    launch(machine().update != nullptr ? machine().update : machine().update_amax, "the update",
           amax);
  }

  // What waits for the amaxes of all shards: the cast, or the history's entry. `stop`: a float in
  // the machine's memory, or null; if it is not 0, nothing is done.
  void finish(const at::Tensor& amax, const float* stop) {
    if (machine().update == nullptr) {
      launch(machine().cast, "the cast", amax, stop);
    } else if (machine().record_amax != nullptr) {
      launch(machine().record_amax, "recording the amax", amax, stop);
    }
  }

  // Counts the step of every parameter that had a gradient. `cast`: whether finish() has made their
  // bytes; otherwise they are stale.
  void commit(bool cast) {
    for (AdamParameter& parameter : parameters_) parameter.commit(cast);
  }

  // Of a step that is prepared: the parameters that could have a gradient and have none.
  const std::vector<int64_t>& find_absent() {
    absent_.clear();
    for (int64_t i = 0; i < size(); ++i) {
      if (parameters_[i].is_absent()) absent_.push_back(i);
    }
    return absent_;
  }

  // Their bytes are to be made anew.
  void mark_absent_stale() const {
    for (const int64_t i : absent_) parameters_[i].mark_stale();
  }

  int64_t size() const { return std::ssize(parameters_); }

 private:
  const nc_machine& machine() const { return table_.machine(); }

  std::vector<nc_tensor> entries() const {
    std::vector<nc_tensor> entries;
    entries.reserve(parameters_.size());
    for (const AdamParameter& parameter : parameters_) entries.push_back(parameter.entry());
    return entries;
  }

  void launch(nc_function function, const char* what, const OptionalTensor& amax,
              const float* stop = nullptr) const {
    nc_launch options{};
    options.found_inf = stop;
    options.steps = step_table_.rows;
    options.stochastic = stochastic_;
    if (amax) options.amax = checked_floats(*amax, size(), table_.device(), "the tensor of amaxes");
    table_.run(function, what, options);
  }

  bool stochastic_;
  std::vector<AdamParameter> parameters_;
  std::vector<int64_t> groups_;  // of the options
  std::vector<nc_step> steps_;
  std::vector<int64_t> absent_;
  MatrixTable table_;
  Table<nc_step> step_table_;
};

}  // namespace narrowcast
