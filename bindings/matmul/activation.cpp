#include "bindings/matmul/activation.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "bindings/core/launch.hpp"
#include "runtime/launch/capture.hpp"

namespace narrowcast {

Operand Activation::operand(int usage) const {
  const auto [data, scale] = buffers_of(usage);
  return {plugin, usage, usage == 1, rows, columns, *buffers[data], *buffers[scale], amax};
}

Activation cast_activation(const at::Tensor& value, const Plugin& plugin, Usages usages,
                           const std::optional<RandomKey>& key) {
  const at::Device device = value.device();
  const nc_machine& machine = plugin.machine(device);
  const int64_t rows = value.size(0), columns = value.size(1);
  Activation made{&plugin, rows, columns, {}, {}};
  made.buffers =
      allocate_buffers(plugin, {rows, columns}, usages.rowwise, usages.columnwise, device);

  nc_tensor entry{};
  entry.rows = rows;
  entry.columns = columns;
  entry.value_dtype = checked_dtype(value.scalar_type(), "the activation");
  check_run(value, rows * columns, device, "the activation");
  entry.value = address_of(value, "the activation");
  for (int index = 0; index < NC_BUFFER_COUNT; ++index) {
    if (made.buffers[index]) entry.buffer[index] = made.buffers[index]->mutable_data_ptr();
  }
  nc_launch options{};
  options.stochastic = key.has_value();
  if (key) std::tie(entry.seed, entry.step, entry.first) = *key;
  at::Tensor found;
  if (plugin.format().tensor_amax) {
    // One float is found; where values depend on it, the other is stored with the bytes.
    found = zeros_of(2, device);
    options.amax = found.mutable_data_ptr<float>() + 1;
    if (has_two_levels(plugin)) {
      entry.amax = found.mutable_data_ptr<float>();
      made.amax = found;
      made.amax->unsafeGetTensorImpl()->set_sizes_contiguous({1});
    }
  }
  MatrixTable table(machine, device);
  table.assign({entry});
  // Where a scale spans the tensor, its amax says what the scale is to be.
  options.keep_nonfinite = 1;
  if (options.amax != nullptr) {
    table.run(machine.reduce_amax, "the amax", options);
    options.keep_nonfinite = 0;
  }
  table.run(machine.cast, "the cast", options);
  return made;
}

std::vector<at::Tensor> all_tensors(const Activation& activation) {
  std::vector<at::Tensor> tensors;
  for (const OptionalTensor& buffer : activation.buffers) {
    if (buffer) tensors.push_back(*buffer);
  }
  if (activation.amax) tensors.push_back(*activation.amax);
  return tensors;
}

Activation activation_of(const std::vector<at::Tensor>& all, const Plugin& plugin, Usages usages) {
  Activation made{&plugin, -1, -1, {}, {}};
  auto next = all.begin();
  for (const int usage : {0, 1}) {
    if (usage == 0 ? !usages.rowwise : !usages.columnwise) continue;
    for (const int index : buffers_of(usage)) made.buffers[index] = *next++;
  }
  if (has_two_levels(plugin)) made.amax = *next;
  return made;
}

RandomKey drawn_key(at::Device device) {
  if (device.is_cuda() && capture_of(stream_of(device)) != 0)
    throw std::runtime_error(
        "a CUDA graph is being captured, and a gradient is rounded stochastically in it: the seed "
        "is drawn on the host, so each replay would have the same random words. Capture the "
        "forward alone, or use torch.compile(mode=\"reduce-overhead\"), which leaves such casts "
        "out of its graphs");
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::scoped_lock lock(cpu->mutex_);
  return {cpu->random64(), 0, 0};
}

namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;

// What a cast was made of: which of an input's values, what they were converted to, and when.
struct Source {
  int64_t version;
  at::ScalarType dtype;
  int64_t rows;  // padding included
  const Plugin* plugin;
  void* stream;
  uint64_t capture;  // what a CUDA graph records is not shared
  bool operator==(const Source&) const = default;
};

Source source_of(const at::Tensor& input, const at::Tensor& value, const Plugin& plugin) {
  void* const stream = stream_of(value.device());
  return {.version = input._version(),
          .dtype = value.scalar_type(),
          .rows = value.size(0),
          .plugin = &plugin,
          .stream = stream,
          .capture = value.is_cuda() ? capture_of(stream) : 0};
}

// Whether torch counts all writes to a tensor that it knows of: not those in inference mode, nor
// those of its fused optimizers, which write to parameters.
bool counts_writes(const at::Tensor& tensor) {
  if (tensor.is_inference()) return false;
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return !(base.requires_grad() && base.is_leaf());
}

// The last cast, and what it was made of.
struct LastInput {
  Weak input;
  Source source;
  Activation activation;
  // Of the layers that have taken it: a part of a weight is another tensor each time, and FSDP2 may
  // put other bytes into the same.
  struct Weight {
    const c10::TensorImpl* tensor;
    int64_t key;
  };
  std::vector<Weight> weights;

  bool has_served(const Weight& asking) const {
    return std::ranges::any_of(weights, [&](const Weight& one) {
      return one.tensor == asking.tensor || one.key == asking.key;
    });
  }

  bool serves(const at::Tensor& other, const Source& now, const Weight& weight,
              Usages usages) const {
    // An input that has died may have another at its address: a weak pointer keeps the address.
    return input.use_count() != 0 && input._unsafe_get_target() == other.unsafeGetTensorImpl() &&
           source == now && (!usages.rowwise || activation.has(0)) &&
           (!usages.columnwise || activation.has(1)) && !has_served(weight);
  }
};

// Not held for a cast or a freeing of memory, which may want Python's.
std::mutex last_mutex;
// Not destroyed with the process: by then torch's allocators may be gone.
std::optional<LastInput>& last = *new std::optional<LastInput>;  // NOLINT(*-owning-memory)

}  // namespace

Activation cast_input(const at::Tensor& input, const at::Tensor& value, const WeightPart& weight,
                      const Plugin& plugin, Usages usages) {
  if (!is_plain(input) || !is_resolved(input) || !counts_writes(input))
    return cast_activation(value, plugin, usages);
  const Source source = source_of(input, value, plugin);
  const LastInput::Weight asking{weight.tensor.unsafeGetTensorImpl(), weight.key};
  {
    const std::scoped_lock lock(last_mutex);
    if (last && last->serves(input, source, asking, usages)) {
      last->weights.push_back(asking);
      return last->activation;
    }
  }
  forget_input();  // before more memory is taken
  Activation made = cast_activation(value, plugin, usages);
  std::optional<LastInput> next({Weak(input.getIntrusivePtr()), source, made, {asking}});
  const std::scoped_lock lock(last_mutex);
  last.swap(next);
  return made;
}

void forget_input() {
  std::optional<LastInput> forgotten;
  const std::scoped_lock lock(last_mutex);
  last.swap(forgotten);
}

int64_t kept_input_bytes() {
  const std::scoped_lock lock(last_mutex);
  int64_t bytes = 0;
  if (!last) return bytes;
  for (const OptionalTensor& buffer : last->activation.buffers) {
    if (buffer) bytes += static_cast<int64_t>(buffer->nbytes());
  }
  return bytes;
}

}  // namespace narrowcast
