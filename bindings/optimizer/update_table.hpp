// The parameters of one optimizer that one launch updates: those of one format (or of none) on one
// device.
#pragma once

#include <ATen/ops/index_select.h>

#include "bindings/core/launch.hpp"
#include "bindings/core/peers.hpp"
#include "bindings/optimizer/counted_steps.hpp"
#include "bindings/optimizer/updated_parameter.hpp"
#include "runtime/optimizer/step.hpp"
#include "runtime/plugin/registry.hpp"

namespace narrowcast {

// The constants of a step, one row a parameter, where the machine reads them, and, if wanted, a
// zero for each, in whose place the launch puts its amax. To a GPU one copy brings both: a kernel
// that fills so few floats costs the host as much as a launch.
class StepTable {
 public:
  StepTable() = default;
  StepTable(const std::vector<nc_step>& steps, bool with_amaxes, at::Device device) {
    const auto count = std::ssize(steps);
    const bool is_copied = device.is_cuda() && count > NC_PARAMETER_TENSORS;
    if (!with_amaxes || !is_copied) {
      table_ = {steps, device};
      if (with_amaxes) add_amaxes(count, device);
      return;
    }
    constexpr int64_t kFloatsOfRow = sizeof(nc_step) / sizeof(float);
    std::vector<nc_step> rows(steps);
    rows.resize(count + (count + kFloatsOfRow - 1) / kFloatsOfRow);
    table_ = {rows, device};
    amaxes_ = static_cast<float*>(table_.copy.mutable_data_ptr()) + count * kFloatsOfRow;
  }

  // Of steps that the GPU has made, int64 [parameters, words of nc_step].
  StepTable(at::Tensor made, bool with_amaxes) {
    table_.copy = std::move(made);
    table_.rows = static_cast<const nc_step*>(table_.copy.const_data_ptr());
    if (with_amaxes) add_amaxes(table_.copy.size(0), table_.copy.device());
  }

  const nc_step* rows() const { return table_.rows; }
  // Those that the GPU has, at some places.
  StepTable of(const at::Tensor& places) const {
    return {at::index_select(table_.copy, 0, places), /*with_amaxes=*/false};
  }
  float* amaxes() const { return amaxes_; }  // null if there are none

 private:
  void add_amaxes(int64_t count, at::Device device) {
    zeros_ = zeros_of(count, device);
    amaxes_ = zeros_.mutable_data_ptr<float>();
  }

  Table<nc_step> table_;
  at::Tensor zeros_;
  float* amaxes_ = nullptr;
};

// A step: prepare() of every table (reads gradients, checks everything, changes nothing); update();
// the caller's reduction of amaxes; finish() where a scale spans the tensor, or ranks reduce
// something; commit().
class UpdateTable {
 public:
  // No plugin: parameters that no format stores. `rule`: by its name; NotImplementedError if no
  // loaded library has it for the format. `stochastic`: how codes are rounded. `counted`: by the
  // GPU, whose memory has the counts of steps.
  UpdateTable(const std::string& rule, const Plugin* plugin, at::Device device, bool stochastic,
              bool counted);
  // Masters of flat shards, in their order, empty ones too. `exchange`: float32, of what owners
  // share; `skips`: float32, one a shard: after the reduction negative where no owner had a
  // gradient, and then the shard is left as it is.
  UpdateTable(const std::string& rule, std::shared_ptr<FlatShards> shards, bool stochastic,
              bool counted, OptionalTensor exchange, OptionalTensor skips);

  // Adds a parameter of an option group with the optimizer's state of it; a quantized one has
  // history, too, if its scaling is delayed. Masters are all float32, or all bfloat16. `seed`,
  // `first`: of stochastic rounding, as in nc_tensor.
  void add(const py::object& parameter, const std::string& name, int64_t group,
           const py::dict& state, uint64_t seed, uint64_t first) {
    const UpdateFacts facts{facts_, states_, machine(), table_.device(), counted_.has_value()};
    parameters_.emplace_back(parameter, name, state, facts, seed, first);
    bf16_masters_ = bf16_masters_ || parameters_.back().has_bf16_master();
    if (shards_) {
      const size_t place = parameters_.size() - 1;
      parameters_.back().become_flat_shard(shards_->entry(place), shards_->elements(place));
    }
    std::ranges::move(parameters_.back().release_tensors(), std::back_inserter(tensors_));
    groups_.push_back(group);
    steps_.emplace_back();
  }

  // Parameters whose scale of the tensor is one. update() and finish() are then given amaxes.
  void share(std::shared_ptr<Peers> peers) { peers_ = std::move(peers); }

  // False if the parameters' memory or state are no longer what the table was made from, or one
  // without state has got its first gradient. `groups`: the rule's options of each.
  bool prepare(const std::vector<std::vector<double>>& groups, std::optional<double> grad_scale) {
    int64_t made_for_group = -1, made_for_t = -1;
    nc_step made{};
    return read_gradients([&](size_t i) {
      const int64_t t = parameters_[i].next_step();
      if (groups_[i] != made_for_group || t != made_for_t) {
        made = make_step(facts_, groups[groups_[i]], t, grad_scale.value_or(1.0));
        made_for_group = groups_[i];
        made_for_t = t;
      }
      return made;
    });
  }

  // The same where the GPU counts.
  bool prepare_counted(const CountedOptions& groups, OptionalTensor grad_scale,
                       OptionalTensor found_inf) {
    if (!read_gradients([](size_t) { return nc_step{}; })) return false;
    counted_->prepare(groups, std::move(grad_scale), std::move(found_inf));
    return true;
  }

  // Has the update take other tensors, each times a factor, in the place of the gradients that
  // prepare() has read: one for each parameter, none where the gradient stays.
  void replace_gradients(const std::vector<std::optional<std::pair<at::Tensor, float>>>& given) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i]) parameters_[i].replace_gradient(given[i]->first, given[i]->second, steps_[i]);
    }
  }

  // `amax`: zeros, one float a parameter, where a scale spans the tensor and ranks reduce them; it
  // is given to finish() too.
  void update(const OptionalTensor& amax) {
    if (parameters_.empty()) return;
    if (table_.size() != size()) assign();  // they change only when some are added
    for (const UpdatedParameter& parameter : parameters_) parameter.settle_residual();
    const bool with_amaxes = spans_ && !amax;
    if (counted_) {
      step_table_ = {counted_->begin(machine().updates[rule_].begin, counted()), with_amaxes};
    } else {
      step_table_ = {steps_, with_amaxes, table_.device()};
    }
    const nc_update& kernels = machine().updates[rule_];
    launch(kernels.update != nullptr ? kernels.update : kernels.update_amax, "the update", amax);
  }

  // What waits for the amaxes of all shards: the cast, or the history's entry; and of flat shards
  // the cast of what owners share.
  void finish(const OptionalTensor& amax) {
    if (peers_) peers_->share(*amax);
    if (machine().record_amax != nullptr)
      launch(machine().record_amax, "recording the amax", amax, skips_);
    if (machine().updates[rule_].update == nullptr) {
      launch(machine().cast, "the cast", amax, skips_);
    } else if (ends_.size() > 0) {
      cast_ends();
    }
  }

  // Counts the step of every parameter that had a gradient. `cast`: whether finish() has made their
  // bytes; otherwise they are stale. Stale are also those that share a scale of which some had no
  // gradient: the next cast of them is of all.
  void commit(bool cast) {
    std::vector<const UpdatedParameter*> outdated;
    for (size_t i = 0; peers_ && i < parameters_.size(); ++i) {
      const auto any = [&](bool (UpdatedParameter::*is)() const) {
        return std::ranges::any_of(peers_->of(i),
                                   [&](int64_t j) { return (parameters_[j].*is)(); });
      };
      if (any(&UpdatedParameter::has_gradient) && any(&UpdatedParameter::lacks_gradient))
        outdated.push_back(&parameters_[i]);
    }
    // With counted steps nobody else makes bytes, so that forwards in a graph need not cast.
    const bool nearest = !stochastic_ && !counted_;
    for (UpdatedParameter& parameter : parameters_) parameter.commit(cast, nearest);
    for (const UpdatedParameter* one : outdated) one->mark_stale();
  }

  // Of a step that is prepared: the parameters that have no gradient, and are not empty.
  std::vector<int64_t> find_absent() const {
    std::vector<int64_t> absent;
    for (int64_t i = 0; i < size(); ++i) {
      if (parameters_[i].lacks_gradient()) absent.push_back(i);
    }
    return absent;
  }

  int64_t size() const { return std::ssize(parameters_); }
  // Whether a scale spans the tensor.
  bool spans() const { return spans_; }

 private:
  const nc_machine& machine() const { return table_.machine(); }

  // As prepare() says. `step_of(i)`: of parameter i, without the gradient.
  template <class StepOf>
  bool read_gradients(const StepOf& step_of) {
    if (!std::ranges::all_of(tensors_, &PlacedTensor::is_in_place)) return false;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      UpdatedParameter& parameter = parameters_[i];
      const py::object local = parameter.local();
      if (!parameter.is_current(local)) return false;
      steps_[i] = step_of(i);
      parameter.read_gradient(THPVariable_Unpack(local.ptr()), steps_[i]);
      if (parameter.needs_state()) return false;
    }
    return true;
  }

  std::vector<nc_counted> counted() const {
    std::vector<nc_counted> rows;
    rows.reserve(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i)
      rows.push_back({parameters_[i].count(), steps_[i].grad, steps_[i].grad_dtype,
                      static_cast<int32_t>(groups_[i])});
    return rows;
  }

  void assign() {
    std::vector<nc_tensor> entries, ends;
    entries.reserve(parameters_.size());
    owner_of_end_.clear();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      entries.push_back(parameters_[i].entry());
      if (!shards_) continue;
      const bool bytes_alone = machine().record_amax != nullptr;
      std::ranges::copy(shards_->ends(i, entries.back(), bytes_alone), std::back_inserter(ends));
      // Who owns nothing cannot know at the update whether the others have a gradient; its scale is
      // then made again, from the history that the step leaves behind.
      if (bytes_alone && shards_->elements(i) == 0) ends.push_back(entries.back());
      owner_of_end_.resize(ends.size(), i);
    }
    table_.assign(std::move(entries));
    ends_.assign(std::move(ends));
    if (counted_ && !owner_of_end_.empty())
      owners_ = uploaded_to(table_.device(), {owner_of_end_.data(), owner_of_end_.size()});
  }

  void launch(nc_function function, const char* what, const OptionalTensor& amax,
              const OptionalTensor& skips = {}) const {
    nc_launch options = make_launch();
    options.steps = step_table_.rows();
    options.amax = amax ? checked_floats(*amax, size(), table_.device(), "the tensor of amaxes")
                        : step_table_.amaxes();
    if (skips)
      options.verdict = checked_floats(*skips, size(), table_.device(), "which shards to skip");
    note_write();
    table_.run(function, what, options);
  }

  // Of blocks and bytes that a cut divides, from what all owners contributed: the update has cast
  // them from the own part alone.
  void cast_ends() const {
    std::vector<nc_step> steps;
    for (const size_t owner : owner_of_end_) steps.push_back(steps_[owner]);
    const StepTable table = counted_ ? step_table_.of(owners_)
                                     : StepTable(steps, /*with_amaxes=*/false, ends_.device());
    nc_launch options = make_launch();
    options.steps = table.rows();
    ends_.run(machine().cast, "the cast of what owners share", options);
  }

  nc_launch make_launch() const {
    nc_launch options{};
    options.stochastic = stochastic_;
    options.bf16_masters = bf16_masters_;
    if (counted_) options.found_inf = counted_->found_inf();
    if (exchange_) options.exchange = exchange_->data_ptr<float>();
    return options;
  }

  LoadedPlugin library_;  // which has the rule for the format
  int64_t rule_;          // its place there
  const nc_update_rule& facts_;
  std::span<const nc_state_format> states_;
  bool stochastic_;
  bool spans_;
  std::optional<CountedSteps> counted_;  // of a GPU that counts
  bool bf16_masters_ = false;
  std::vector<UpdatedParameter> parameters_;
  // Of all parameters. Each costs two visits to memory a step, which can be under way together.
  std::vector<PlacedTensor> tensors_;
  std::vector<int64_t> groups_;  // of the options
  std::vector<nc_step> steps_;
  std::shared_ptr<FlatShards> shards_;
  std::shared_ptr<Peers> peers_;
  OptionalTensor exchange_, skips_;
  MatrixTable table_, ends_;          // ends_: of flat shards, that wait for other owners
  std::vector<size_t> owner_of_end_;  // its shard
  at::Tensor owners_;                 // the same, where the GPU counts
  StepTable step_table_;
};

}  // namespace narrowcast
