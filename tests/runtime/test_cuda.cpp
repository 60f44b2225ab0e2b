// The law, between the machines: for every format, the GPU's bytes are the CPU's.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "runtime/numeric/narrow.hpp"
#include "runtime/optimizer/step.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/threads.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

// The GPU's side of a Quantized.
struct DeviceQuantized {
  std::vector<DeviceArray<uint8_t>> buffer;
  DeviceArray<float> amax{std::vector<float>{0}};
  DeviceArray<nc_history> history;

  explicit DeviceQuantized(const Quantized& host) : history(std::vector<nc_history>{host.history}) {
    for (const auto& bytes : host.buffer) buffer.emplace_back(bytes);
  }
  void connect(const nc_format& format, nc_tensor& tensor) {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) tensor.buffer[b] = buffer[b].get();
    tensor.amax = format.tensor_amax ? amax.get() : nullptr;
    tensor.history = history.get();
  }
  Quantized download(const nc_format& format, Extent matrix) const {
    Quantized host(format, matrix);
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) host.buffer[b] = buffer[b].download();
    host.amax = amax.download()[0];
    host.history = history.download()[0];
    return host;
  }
};

constexpr int64_t kLeastElements = 1 << 16;  // for a thread

template <class Type>
std::vector<Type> narrowed(const std::vector<float>& values) {
  std::vector<Type> result(values.size());
  in_ranges(static_cast<int64_t>(values.size()), kLeastElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) result[i] = narrow<Type>(values[i]);
  });
  return result;
}

// Equal bits; a NaN is a NaN, whatever its payload.
template <class Type>
bool same(const std::vector<Type>& a, const std::vector<Type>& b) {
  std::atomic<bool> equal = a.size() == b.size();
  if (!equal) return false;
  in_ranges(static_cast<int64_t>(a.size()), kLeastElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float x = widen(a[i]), y = widen(b[i]);
      if (bits_of(x) != bits_of(y) && !(is_nan(x) && is_nan(y))) equal = false;
    }
  });
  return equal;
}

// Runs `function` of the GPU over tensors whose pointers are device pointers. What it did is seen
// by a download, which waits for it.
const char* run(nc_function function, nc_launch launch, const std::vector<nc_tensor>& tensors,
                const std::vector<nc_step>& steps = {}) {
  const DeviceArray<nc_tensor> table(tensors);
  const DeviceArray<nc_step> device_steps(steps);
  launch.tensors = table.get();
  launch.steps = steps.empty() ? nullptr : device_steps.get();
  return function(&launch);
}

const char* run(const std::vector<nc_function>& functions, const nc_launch& launch,
                const std::vector<nc_tensor>& tensors, const std::vector<nc_step>& steps = {}) {
  for (const nc_function function : functions) {
    if (const char* fault = run(function, launch, tensors, steps)) return fault;
  }
  return nullptr;
}

// How an element's code is chosen among its neighbours, and from what value.
struct Rounding {
  bool source_bf16 = false;
  bool stochastic = false;
  uint64_t seed = 0, step = 0, first = 0;

  void apply(nc_tensor& tensor, nc_launch& launch) const {
    tensor.seed = seed;
    tensor.step = step;
    tensor.first = first;
    launch.source_bf16 = source_bf16;
    launch.stochastic = stochastic;
  }
};

// What a matrix is cast from, on both machines.
template <class Type>
struct Source {
  nc_dtype dtype;
  std::vector<Type> host;
  DeviceArray<Type> device;

  Source(nc_dtype dtype, std::vector<Type> values)
      : dtype(dtype), host(std::move(values)), device(host) {}
};

// One matrix of a format, quantized on both machines.
class Pair {
 public:
  Pair(const nc_plugin& plugin, Extent matrix)
      : plugin_(plugin),
        matrix_(matrix),
        expected_(*plugin.format, matrix),
        device_(expected_),
        tensor_(tensor_of(matrix)),
        device_tensors_{tensor_} {
    expected_.connect(*plugin.format, tensor_);
    device_.connect(*plugin.format, device_tensors_[0]);
  }

  template <class Type>
  void expect_equal_casts(const Source<Type>& source, const Rounding& rounding) {
    use(source.dtype, const_cast<Type*>(source.host.data()), source.device.get());
    float amax = 0;
    nc_launch launch = cpu_launch(&amax);
    rounding.apply(tensor_, launch);
    REQUIRE(quantize(*plugin_.cpu, launch) == nullptr);
    const DeviceArray<float> device_amax(std::vector<float>{0});
    launch = cuda_launch(device_amax.get());
    rounding.apply(device_tensors_[0], launch);
    REQUIRE(run(quantizing(*plugin_.cuda), launch, device_tensors_) == nullptr);
    expect_equal_bytes();
  }

  // Columnwise from the rowwise bytes, where it can be, is what the cast wrote.
  void expect_equal_columnwise() {
    if (plugin_.cuda->derive_columnwise == nullptr) return;
    for (int b : {NC_COLUMNWISE_DATA, NC_COLUMNWISE_SCALE})
      check(cudaMemset(device_.buffer[b].get(), 0, device_.buffer[b].size()), "clear");
    REQUIRE(run(plugin_.cuda->derive_columnwise, cuda_launch(), device_tensors_) == nullptr);
    expect_equal_bytes();
  }

  // Decoding, both usages.
  template <class Type>
  void expect_equal_values(nc_dtype dtype) {
    std::vector<Type> values(static_cast<size_t>(matrix_.rows * matrix_.columns));
    const DeviceArray<Type> device_values(values.size());
    use(dtype, values.data(), device_values.get());
    const nc_launch on_cpu = cpu_launch(), on_gpu = cuda_launch();
    for (bool columnwise : {false, true}) {
      CAPTURE(columnwise);
      const auto pick = [&](const nc_machine& machine) {
        return columnwise ? machine.dequantize_columnwise : machine.dequantize_rowwise;
      };
      REQUIRE(pick(*plugin_.cpu)(&on_cpu) == nullptr);
      REQUIRE(run(pick(*plugin_.cuda), on_gpu, device_tensors_) == nullptr);
      CHECK(same(device_values.download(), values));
    }
  }

 private:
  void use(nc_dtype dtype, void* value, void* device_value) {
    tensor_.value_dtype = device_tensors_[0].value_dtype = dtype;
    tensor_.value = value;
    device_tensors_[0].value = device_value;
  }
  nc_launch cpu_launch(float* amax = nullptr) {
    nc_launch launch = launch_of(*plugin_.cpu, &tensor_, 1, nullptr, amax);
    launch.parallel_for = on_all_threads;
    return launch;
  }
  nc_launch cuda_launch(float* amax = nullptr) {
    return launch_of(*plugin_.cuda, device_tensors_.data(), 1, nullptr, amax);
  }
  void expect_equal_bytes() {
    const Quantized actual = device_.download(*plugin_.format, matrix_);
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      CAPTURE(b);
      CHECK(actual.buffer[b] == expected_.buffer[b]);
    }
    CHECK(bits_of(actual.amax) == bits_of(expected_.amax));
  }

  const nc_plugin& plugin_;
  Extent matrix_;
  Quantized expected_;
  DeviceQuantized device_;
  nc_tensor tensor_;
  std::vector<nc_tensor> device_tensors_;
};

bool ready(const nc_plugin& plugin) { return plugin.cuda != nullptr && has_gpu(); }

const std::vector<Extent> kShapes = {
    {1, 1},     {1, 32},    {32, 1},     {16, 48},    {32, 32},     {33, 31},    {36, 52},
    {64, 64},   {65, 96},   {96, 65},    {100, 60},   {127, 400},   {128, 128},  {129, 257},
    {256, 272}, {303, 300}, {304, 304},  {305, 256},  {320, 320},   {993, 512},  {1024, 1},
    {1, 4096},  {2, 4},     {250, 4096}, {4096, 250}, {2000, 2000}, {2048, 2048}};

// Drawn once for all formats. One of the three places of the first element is taken in turn.
TEST_CASE("quantize: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  uint64_t seed = 1;
  for (const Extent matrix : kShapes) {
    CAPTURE(matrix.rows);
    CAPTURE(matrix.columns);
    for (const Kind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const std::vector<float> values = draw(kind, matrix.rows * matrix.columns, ++seed);
      const Source<float> f32(NC_F32, values);
      const Source<Bf16> bf16(NC_BF16, narrowed<Bf16>(values));
      const Source<F16> f16(NC_F16, narrowed<F16>(values));
      uint64_t turn = seed;
      for (const nc_plugin* plugin : all_plugins()) {
        if (!ready(*plugin) || !holds(*plugin->format, matrix)) continue;
        CAPTURE(std::string(plugin->format->name));
        constexpr uint64_t kFirsts[] = {0, 64, 7};
        const Rounding stochastic{.stochastic = true,
                                  .seed = seed << 40,
                                  .step = seed << 30,
                                  .first = kFirsts[turn++ % 3]};
        Pair pair(*plugin, matrix);
        pair.expect_equal_casts(f32, stochastic);
        pair.expect_equal_casts(f32, {.source_bf16 = true});
        pair.expect_equal_casts(bf16, {});
        pair.expect_equal_values<Bf16>(NC_BF16);
        pair.expect_equal_casts(f16, {});
        pair.expect_equal_values<F16>(NC_F16);
        pair.expect_equal_casts(f32, {});
        pair.expect_equal_columnwise();
        pair.expect_equal_values<float>(NC_F32);
      }
    }
  }
}

// More than 1e8 elements, with a run of each kind for each block, so that special values do not
// decide every scale.
constexpr Extent kLarge{12288, 8448};

// Fills pieces of the vector, each from a Random of its own.
template <class Fill>
std::vector<float> filled(int64_t count, uint64_t seed, const Fill& fill) {
  std::vector<float> values(static_cast<size_t>(count));
  constexpr int64_t kPiece = kLeastElements;
  in_ranges((count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      Random random(seed << 32 | static_cast<uint64_t>(piece));
      const int64_t first = piece * kPiece, length = std::min(kPiece, count - first);
      fill(std::span(values).subspan(first, length), random);
    }
  });
  return values;
}

std::vector<float> draw_on_threads(Kind kind, int64_t count, uint64_t seed) {
  return filled(count, seed, [&](std::span<float> values, Random& random) {
    for (float& value : values) value = draw(kind, random);
  });
}

std::vector<float> draw_runs(int64_t count, uint64_t seed) {
  return filled(count, seed, [](std::span<float> values, Random& random) {
    for (size_t first = 0; first < values.size(); first += 256) {
      const Kind kind = kKinds[random.below(5)];
      for (size_t i = first; i < std::min(first + 256, values.size()); ++i)
        values[i] = draw(kind, random);
    }
  });
}

TEST_CASE("quantize: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  if (!has_gpu()) return;
  const Source<float> source(NC_F32, draw_runs(kLarge.rows * kLarge.columns, 7));
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    Pair pair(*plugin, kLarge);
    pair.expect_equal_casts(source, {});
    pair.expect_equal_columnwise();
    pair.expect_equal_values<float>(NC_F32);
  }
}

// Masters, moments and gradients, drawn once for all formats.
struct Drawn {
  Extent matrix;
  std::vector<float> master, exp_avg, exp_avg_sq, grad;

  Drawn(Extent matrix, uint64_t seed) : matrix(matrix) {
    const int64_t n = matrix.rows * matrix.columns;
    const Kind kind = kKinds[seed % 5];
    master = draw_runs(n, 4 * seed);
    exp_avg = draw_on_threads(Kind::kOrdinary, n, 4 * seed + 1);
    exp_avg_sq = draw_on_threads(Kind::kOrdinary, n, 4 * seed + 2);
    for (float& square : exp_avg_sq) square *= square;
    grad = draw_on_threads(kind == Kind::kBits ? kind : Kind::kOrdinary, n, 4 * seed + 3);
  }
};

template <class Grad, class State>
void expect_equal_updates(const nc_plugin& plugin, const std::vector<Drawn>& all,
                          nc_dtype grad_dtype, nc_dtype state_dtype, bool decoupled,
                          bool stochastic = false) {
  const nc_format& format = *plugin.format;
  const AdamOptions options{1e-3, 0.9, 0.95, 1e-8, 0.1, decoupled};
  struct Case {
    Extent matrix;
    std::vector<float> master;
    std::vector<State> exp_avg, exp_avg_sq;
    std::vector<Grad> grad;
    Quantized quantized;
    DeviceArray<float> device_master{master};
    DeviceArray<State> device_exp_avg{exp_avg}, device_exp_avg_sq{exp_avg_sq};
    DeviceArray<Grad> device_grad{grad};
    DeviceQuantized device{quantized};

    Case(const nc_format& format, const Drawn& drawn)
        : matrix(drawn.matrix),
          master(drawn.master),
          exp_avg(narrowed<State>(drawn.exp_avg)),
          exp_avg_sq(narrowed<State>(drawn.exp_avg_sq)),
          grad(narrowed<Grad>(drawn.grad)),
          quantized(format, matrix) {}
  };
  std::vector<Case> cases;
  for (const Drawn& drawn : all) {
    if (holds(format, drawn.matrix)) cases.emplace_back(format, drawn);
  }
  for (int64_t t = 1; t <= 3; ++t) {
    std::vector<nc_tensor> tensors, device_tensors;
    std::vector<nc_step> steps, device_steps;
    for (Case& c : cases) {
      nc_tensor tensor = tensor_of(c.matrix);
      tensor.state_dtype = state_dtype;
      tensor.seed = static_cast<uint64_t>(tensors.size());
      nc_tensor device_tensor = tensor;
      tensor.value = c.master.data();
      tensor.exp_avg = c.exp_avg.data();
      tensor.exp_avg_sq = c.exp_avg_sq.data();
      c.quantized.connect(format, tensor);
      device_tensor.value = c.device_master.get();
      device_tensor.exp_avg = c.device_exp_avg.get();
      device_tensor.exp_avg_sq = c.device_exp_avg_sq.get();
      c.device.connect(format, device_tensor);
      nc_step step = make_step(options, t);
      step.grad_dtype = grad_dtype;
      step.scaled = t == 2;
      step.grad_multiplier = 1.0f / 3.0f;
      const bool without = t == 3 && steps.size() % 3 == 0;  // some parameters have no gradient
      step.grad = without ? nullptr : c.grad.data();
      steps.push_back(step);
      step.grad = without ? nullptr : c.device_grad.get();
      device_steps.push_back(step);
      tensors.push_back(tensor);
      device_tensors.push_back(device_tensor);
    }
    std::vector<float> amax(cases.size(), 0.0f);
    const DeviceArray<float> device_amax(amax);
    nc_launch launch = launch_of(*plugin.cpu, tensors.data(), static_cast<int64_t>(tensors.size()),
                                 steps.data(), amax.data());
    launch.stochastic = stochastic;
    launch.parallel_for = on_all_threads;
    REQUIRE(update(*plugin.cpu, launch) == nullptr);
    nc_launch device_launch =
        launch_of(*plugin.cuda, device_tensors.data(), launch.count, nullptr, device_amax.get());
    device_launch.stochastic = stochastic;
    REQUIRE(run(updating(*plugin.cuda), device_launch, device_tensors, device_steps) == nullptr);
  }
  for (Case& c : cases) {
    CAPTURE(c.matrix.rows);
    CAPTURE(c.matrix.columns);
    CHECK(same(c.master, c.device_master.download()));
    CHECK(same(c.exp_avg, c.device_exp_avg.download()));
    CHECK(same(c.exp_avg_sq, c.device_exp_avg_sq.download()));
    CHECK(c.quantized == c.device.download(format, c.matrix));
  }
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  std::vector<Drawn> drawn;
  for (const Extent matrix : kShapes) drawn.emplace_back(matrix, 25 + drawn.size());
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    expect_equal_updates<float, float>(*plugin, drawn, NC_F32, NC_F32, true);
    expect_equal_updates<float, float>(*plugin, drawn, NC_F32, NC_F32, false);
    expect_equal_updates<Bf16, float>(*plugin, drawn, NC_BF16, NC_F32, true);
    expect_equal_updates<F16, float>(*plugin, drawn, NC_F16, NC_F32, false);
    expect_equal_updates<Bf16, Bf16>(*plugin, drawn, NC_BF16, NC_BF16, true);
    expect_equal_updates<Bf16, float>(*plugin, drawn, NC_BF16, NC_F32, true, true);
  }
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  if (!has_gpu()) return;
  std::vector<Drawn> drawn;
  drawn.emplace_back(kLarge, 25);
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    expect_equal_updates<Bf16, float>(*plugin, drawn, NC_BF16, NC_F32, true);
  }
}

}  // namespace
}  // namespace narrowcast::test
