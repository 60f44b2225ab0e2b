// A parameter of an optimizer, with what a launch that updates it reads of it and of its state.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/core/buffers.hpp"
#include "bindings/core/python_tensors.hpp"
#include "bindings/core/store.hpp"
#include "bindings/flat/shards.hpp"

namespace narrowcast {

// Facts that all parameters of a table share.
struct UpdateFacts {
  const nc_update_rule& rule;
  std::span<const nc_state_format> states;  // that the library has
  const nc_machine& machine;
  at::Device device;
  bool counted;  // by the GPU, whose memory has the counts of steps
};

class UpdatedParameter {
 public:
  // `state`: a dict with step, the rule's states (a number for each element by a state's name; or
  // codes by that and a state format's, STATE_FORMAT, and scales, STATE_FORMAT_scale), of a weight
  // whose value is bfloat16 perhaps residual, and of a plain bfloat16 or float16 parameter master;
  // or an empty dict of a parameter that has had no gradient yet, which is dormant. Tensors may be
  // DTensors. ValueError or TypeError if one is missing, or no tensor that a kernel can read.
  // `seed`, `first`: of stochastic rounding, as in nc_tensor.
  UpdatedParameter(const py::object& parameter, const std::string& name, const py::dict& state,
                   const UpdateFacts& facts, uint64_t seed, uint64_t first)
      : parameter_(parameter),
        name_(name),
        state_(state),
        device_(facts.device),
        counted_(facts.counted),
        sharded_(is_dtensor(parameter)),
        dormant_(state.empty()) {
    if (counted_ && !device_.is_cuda())
      value_error(name_, " is on ", device_.str(), ", and capturable=True is for parameters on a ",
                  "GPU: move the model there, or leave capturable out");
    const py::object wrapper = local();
    const at::Tensor& tensor = THPVariable_Unpack(wrapper.ptr());
    elements_ = tensor.numel();
    store_ = store_of(wrapper);
    if (store_) {
      add_quantized(facts);
    } else {
      add_plain(tensor, facts.machine.tile_columns);
    }
    if (!dormant_) add_state(facts);
    entry_.seed = seed;
    entry_.first = first;
  }

  // Makes it the master of a flat shard of so many elements, whose row this is, without values. An
  // empty tensor is in the place of what is no parameter: it has no gradient.
  void become_flat_shard(const nc_tensor& shard, int64_t elements) {
    const int64_t begin = shard.before;
    if (elements_ != elements && elements_ != 0)
      value_error(name_, " has ", elements_, " elements, and the flat shard that it is the master ",
                  "of ", elements);
    nc_tensor entry = shard;
    entry.value_dtype = store_ ? entry_.value_dtype : NC_F32;
    entry.value = first_of(entry_.value, begin, entry.value_dtype == NC_F32 ? 4 : 2);
    if (residual_) entry.residual = static_cast<int8_t*>(first_of(entry_.residual, begin, 1));
    entry.state_dtype = entry_.state_dtype;
    if (block_ > 0 && (begin % shard.columns != 0 || elements % shard.columns != 0))
      not_implemented(name_, ": it is the elements from ", begin, " to ", begin + elements,
                      " of a matrix of ", shard.columns, " columns, and a state format has blocks ",
                      "of whole rows: use state_dtype=torch.float32 or torch.bfloat16");
    for (size_t k = 0; k < std::size(entry.state); ++k) {
      entry.state[k] = first_of(entry_.state[k], begin, state_size_);
      if (block_ > 0)
        entry.state_scale[k] = static_cast<float*>(
            first_of(entry_.state_scale[k], begin / shard.columns * blocks_of(shard.columns),
                     sizeof(float)));
    }
    entry.seed = entry_.seed;
    entry.first += entry_.first;
    entry_ = entry;
    shard_elements_ = elements;
  }

  // Its row in the table of a launch.
  const nc_tensor& entry() const { return entry_; }

  // The number of the next step.
  int64_t next_step() const { return dormant_ ? 1 : static_cast<int64_t>(*step_) + 1; }

  // Whether it is a weight whose value is bfloat16.
  bool has_bf16_master() const { return store_ && entry_.value_dtype == NC_BF16; }

  // Where the GPU counts its steps; null if this one is not counted.
  float* count() const { return has_gradient() ? step_ : nullptr; }

  // Whether it has got a gradient and has no state: the caller makes that, and another row.
  bool needs_state() const { return dormant_ && gradient_.defined(); }

  // The tensors whose memory is in its row, for the table that it is a row of.
  std::vector<PlacedTensor> release_tensors() { return std::move(remembered_); }

  // Its local tensor, as Python holds it.
  py::object local() const { return sharded_ ? local_of(parameter_) : parameter_; }

  // Whether `local` (its local tensor) is the one that the row was made from. The state's tensors
  // are looked at by the table (their memory), and by ParamGroupsSnapshot.
  bool is_current(const py::object& local) const {
    if (store_) return store_of(local) == store_ && store_->bytes == bytes_;
    const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
    return is_plain(tensor) && place_->is_of(tensor);
  }

  // Takes the gradient of a step, checked, into its row of the table of steps.
  void read_gradient(const at::Tensor& local, nc_step& step) {
    const at::Tensor& whole = THPVariable_Unpack(parameter_.ptr()).grad();
    gradient_.reset();
    // An empty shard has no element to read, but takes part in what concerns the whole tensor.
    if (shard_elements_ == 0) step.grad = this;
    if (!whole.defined()) return;
    const at::Tensor gradient = sharded_ ? local_gradient(whole) : whole;
    constexpr const char* kWhat = ": the gradient";
    if (gradient.layout() != at::kStrided)
      not_implemented(name_, kWhat, " is sparse; a fused step takes dense gradients");
    if (gradient.sizes() != local.sizes())
      value_error(name_, kWhat, " has shape ", gradient.sizes(), ", the parameter ", local.sizes(),
                  sharded_ ? " on this rank" : "");
    const bool is_run = is_resolved(gradient) && gradient.is_contiguous();
    take_gradient(is_run ? gradient : gradient.resolve_neg().contiguous(), kWhat, step);
  }

  // Has the step take another tensor, of the gradient's shape and times a factor, in its place.
  void replace_gradient(const at::Tensor& tensor, float factor, nc_step& step) {
    if (!gradient_.defined()) return;
    take_gradient(tensor, ": the tensor in the gradient's place", step);
    step.grad_multiplier = factor;
  }

  // Before the step: a residual of an earlier value is 0.
  void settle_residual() const {
    if (gradient_.defined() && residual_ && !store_->is_current(*residual_)) residual_->zero_();
  }

  // Whether it has a gradient; whether it has none, and elements that one would be of.
  bool has_gradient() const { return gradient_.defined(); }
  bool lacks_gradient() const {
    return !gradient_.defined() && shard_elements_.value_or(elements_) > 0;
  }

  // The bytes are not those that its master and its peers' ask for.
  void mark_stale() const {
    if (store_) store_->mark_stale();
  }

  // Counts a step, if it had a gradient. `cast`: whether the bytes are those of the new master, to
  // `nearest` or not; otherwise they are stale.
  void commit(bool cast, bool nearest) {
    if (!gradient_.defined()) return;
    if (!counted_) *step_ += 1;
    // As any in-place operation of torch: a backward through the old value is then an error, not a
    // wrong gradient. First, because a master's count may be the parameter's.
    THPVariable_Unpack(parameter_.ptr()).unsafeGetTensorImpl()->bump_version();
    if (store_) cast ? store_->mark_fresh(nearest && !bytes_->history) : store_->mark_stale();
    if (residual_) store_->note_residual(*residual_);
    gradient_ = at::Tensor();
  }

 private:
  // A weight's master is the store's, whatever the state has.
  void add_quantized(const UpdateFacts& facts) {
    bytes_ = store_->bytes;
    const Buffers& bytes = *bytes_;
    entry_ = bytes.entry();
    if (facts.machine.record_amax != nullptr && entry_.history == nullptr)
      value_error(name_, " has no history");
    const bool narrow = facts.rule.nonnegative != nullptr && store_->master &&
                        store_->master->scalar_type() == at::kBFloat16;
    entry_.value_dtype = narrow ? NC_BF16 : NC_F32;
    if (!dormant_)
      entry_.value = checked_state(*store_->master, narrow ? at::kBFloat16 : at::kFloat, "master");
    if (narrow && state_.contains("residual")) {
      residual_ = take("residual");
      entry_.residual = static_cast<int8_t*>(checked_state(*residual_, at::kChar, "residual"));
    }
    for (const OptionalTensor& buffer : bytes.buffers) remember(buffer);
    remember(bytes.amax);
    remember(bytes.history);
  }

  // A run of elements, as rows of a tile's columns.
  void add_plain(const at::Tensor& local, int64_t columns) {
    entry_.rows = ceil_div(elements_, columns);
    entry_.columns = columns;
    entry_.after = entry_.rows * columns - elements_;
    entry_.value_dtype = checked_dtype(local.scalar_type(), name_);
    check_run(local, elements_, device_, name_);
    void* memory = address_of(local, name_);
    place_.emplace(local);
    if (entry_.value_dtype == NC_F32) {
      entry_.value = memory;
    } else if (!dormant_) {
      entry_.buffer[0] = memory;
      entry_.value = checked_state(take("master"), at::kFloat, "master");
    }
  }

  void add_state(const UpdateFacts& facts) {
    const at::Tensor step = take("step");
    step_ = checked_floats(step, 1, counted_ ? device_ : at::kCPU, name_, ": state step");
    remember(step);
    const char* const* names = facts.rule.states;
    if (names[0] == nullptr) return;
    for (size_t i = 0; i < facts.states.size(); ++i) {
      if (!state_.contains(coded(names[0], facts.states[i]))) continue;
      entry_.state_dtype = NC_STATE_FORMAT + static_cast<int32_t>(i);
      return add_codes(names, facts.states[i]);
    }
    std::optional<at::ScalarType> dtype;
    for (int k = 0; names[k] != nullptr; ++k) {
      const at::Tensor state = take(names[k]);
      if (!dtype) dtype = state.scalar_type();
      entry_.state_dtype = checked_dtype(*dtype, name_, ": state ", names[k]);
      entry_.state[k] = checked_state(state, *dtype, names[k]);
      state_size_ = state.itemsize();
    }
  }

  void take_gradient(const at::Tensor& tensor, const char* what, nc_step& step) {
    step.grad_dtype = checked_dtype(tensor.scalar_type(), name_, what);
    gradient_ = tensor;
    check_run(gradient_, elements_, device_, name_, what);
    step.grad = first_of(address_of(gradient_, name_, what), shard_elements_ ? entry_.before : 0,
                         gradient_.itemsize());
    if (elements_ == 0) step.grad = shard_elements_.value_or(0) == 0 ? this : nullptr;
  }

  static std::string coded(const std::string& state, const nc_state_format& format) {
    return state + "_" + format.name;
  }

  // Codes under scales of blocks along rows: those of a matrix, as a plain parameter is one now.
  void add_codes(const char* const* names, const nc_state_format& format) {
    const at::Tensor shaped = take(coded(names[0], format));
    const int64_t columns = shaped.dim() == 0 ? 1 : shaped.size(-1);
    const int64_t rows = columns == 0 ? 0 : elements_ / columns;
    if (!store_) {
      entry_.rows = rows;
      entry_.columns = columns;
      entry_.after = 0;
    }
    block_ = format.block;
    state_size_ = sizeof(uint8_t);
    for (int k = 0; names[k] != nullptr; ++k) {
      const std::string name = coded(names[k], format);
      entry_.state[k] = checked_state(take(name), at::kByte, name);
      const at::Tensor scale = take(name + "_scale");
      entry_.state_scale[k] = checked_floats(scale, rows * blocks_of(columns), device_, name_,
                                             ": state ", name, "_scale");
      remember(scale);
    }
  }

  int64_t blocks_of(int64_t columns) const { return ceil_div(columns, block_); }

  at::Tensor local_gradient(const at::Tensor& gradient) const {
    const auto wrapper = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
    return THPVariable_Unpack(local_of(wrapper).ptr());
  }

  // The entry of the state by this name, as a plain tensor. ValueError if there is none.
  at::Tensor take(const std::string& key) const {
    if (!state_.contains(key)) value_error(name_, ": the optimizer's state has no ", key);
    const py::object local = local_of(state_[py::str(key)]);
    if (!THPVariable_Check(local.ptr())) type_error(name_, ": state ", key, " is no tensor");
    return THPVariable_Unpack(local.ptr());
  }

  void* checked_state(const at::Tensor& tensor, at::ScalarType dtype, const std::string& key) {
    void* address = checked_address(tensor, dtype, elements_, device_, name_, ": state ", key);
    remember(tensor);
    return address;
  }

  void remember(const OptionalTensor& tensor) {
    if (tensor) remembered_.emplace_back(*tensor);
  }

  py::object parameter_;
  std::string name_;
  py::dict state_;
  std::shared_ptr<Store> store_;    // of a quantized parameter
  std::shared_ptr<Buffers> bytes_;  // that it had
  std::optional<Place> place_;      // of another
  at::Device device_;
  bool counted_, sharded_, dormant_;       // by the GPU; a DTensor; without state
  int64_t elements_ = 0;                   // of it on this rank
  std::optional<int64_t> shard_elements_;  // of the flat shard whose master it is
  std::vector<PlacedTensor> remembered_;
  nc_tensor entry_{};
  size_t state_size_ = 0;  // bytes of an element
  int64_t block_ = 0;      // of the state format; 0 if the state is numbers
  float* step_ = nullptr;
  OptionalTensor residual_;
  at::Tensor gradient_;  // of the step being prepared
};

}  // namespace narrowcast
