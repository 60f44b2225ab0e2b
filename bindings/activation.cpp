#include "bindings/activation.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "bindings/launch.hpp"
#include "bindings/weights.hpp"

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
  if (plugin.format().tensor_amax) {
    // One float is stored with the bytes, the other is found, behind it in the same storage.
    made.amax = zeros_of(2, device);
    made.amax->unsafeGetTensorImpl()->set_sizes_contiguous({1});
    entry.amax = made.amax->mutable_data_ptr<float>();
    options.amax = entry.amax + 1;
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

namespace {

bool is_capturing() {
  const py::gil_scoped_acquire python;
  return py::module_::import("torch.cuda").attr("is_current_stream_capturing")().cast<bool>();
}

}  // namespace

RandomKey drawn_key(at::Device device) {
  if (device.is_cuda() && is_capturing())
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

// The last cast, and what it was made of.
struct LastInput {
  Weak input;
  const void* memory;
  std::vector<int64_t> strides;
  uint32_t version;
  at::ScalarType dtype;
  c10::StreamId stream;
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

  bool serves(const at::Tensor& other, const at::Tensor& value, const Weight& weight,
              const Plugin& plugin, Usages usages, c10::StreamId now) const {
    // An input that has died may have another at its address: a weak pointer keeps the address.
    return input.use_count() != 0 && input._unsafe_get_target() == other.unsafeGetTensorImpl() &&
           memory == other.const_data_ptr() && other.strides() == strides &&
           version == other._version() && dtype == value.scalar_type() && stream == now &&
           activation.plugin == &plugin && activation.rows == value.size(0) &&
           activation.columns == value.size(1) && (!usages.rowwise || activation.has(0)) &&
           (!usages.columnwise || activation.has(1)) && !has_served(weight);
  }
};

std::mutex last_mutex;
// Not destroyed with the process: by then torch's allocators may be gone.
std::optional<LastInput>& last = *new std::optional<LastInput>;  // NOLINT(*-owning-memory)

thread_local const at::Tensor* converted = nullptr;

c10::StreamId stream_id(at::Device device) {
  return device.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

}  // namespace

ConvertedInput::ConvertedInput(const at::Tensor& input) : before_(converted) { converted = &input; }
ConvertedInput::~ConvertedInput() { converted = before_; }

Activation cast_input(const at::Tensor& layers, const at::Tensor& value, const at::Tensor& weight,
                      const Plugin& plugin, Usages usages) {
  const at::Tensor& input = converted == nullptr ? layers : *converted;
  // An inference tensor counts no versions, so nobody could tell that it was written to.
  if (input.is_inference() || !is_plain(input)) return cast_activation(value, plugin, usages);
  const c10::StreamId stream = stream_id(value.device());
  const LastInput::Weight asking{weight.unsafeGetTensorImpl(), key_of_weight(weight)};
  const std::scoped_lock lock(last_mutex);
  if (last && last->serves(input, value, asking, plugin, usages, stream)) {
    last->weights.push_back(asking);
    return last->activation;
  }
  last.reset();  // before more memory is taken
  Activation made = cast_activation(value, plugin, usages);
  last.emplace(LastInput{Weak(input.getIntrusivePtr()),
                         input.const_data_ptr(),
                         input.strides().vec(),
                         static_cast<uint32_t>(input._version()),
                         value.scalar_type(),
                         stream,
                         made,
                         {asking}});
  return made;
}

void forget_input() {
  const std::scoped_lock lock(last_mutex);
  last.reset();
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
