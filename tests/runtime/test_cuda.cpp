// The law, between the machines: for every format, the GPU's bytes are the CPU's.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/numeric/narrow.hpp"
#include "runtime/optimizer/step.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
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

template <class Type>
std::vector<Type> narrowed(const std::vector<float>& values) {
  std::vector<Type> result;
  result.reserve(values.size());
  for (float value : values) result.push_back(narrow<Type>(value));
  return result;
}

// Equal bits; a NaN is a NaN, whatever its payload.
template <class Type>
bool same(const std::vector<Type>& a, const std::vector<Type>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const float x = widen(a[i]), y = widen(b[i]);
    if (bits_of(x) != bits_of(y) && !(is_nan(x) && is_nan(y))) return false;
  }
  return true;
}

// Runs `function` of the GPU over tensors whose pointers are device pointers.
const char* run(nc_function function, nc_launch launch, const std::vector<nc_tensor>& tensors,
                const std::vector<nc_step>& steps = {}) {
  const DeviceArray<nc_tensor> table(tensors);
  const DeviceArray<nc_step> device_steps(steps);
  launch.tensors = table.get();
  launch.steps = steps.empty() ? nullptr : device_steps.get();
  const char* fault = function(&launch);
  check(cudaDeviceSynchronize(), "kernel");
  return fault;
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

template <class Type>
void expect_equal_casts(const nc_plugin& plugin, Extent matrix, const std::vector<Type>& values,
                        nc_dtype dtype, const Rounding& rounding) {
  const nc_format& format = *plugin.format;
  Quantized expected(format, matrix);
  nc_tensor tensor = tensor_of(matrix);
  tensor.value = const_cast<Type*>(values.data());
  tensor.value_dtype = dtype;
  expected.connect(format, tensor);
  float amax = 0;
  nc_launch launch = launch_of(*plugin.cpu, &tensor, 1, nullptr, &amax);
  rounding.apply(tensor, launch);
  REQUIRE(quantize(*plugin.cpu, launch) == nullptr);

  DeviceQuantized device{Quantized(format, matrix)};
  const DeviceArray<Type> device_values(values);
  std::vector<nc_tensor> tensors{tensor};
  tensors[0].value = device_values.get();
  device.connect(format, tensors[0]);
  const DeviceArray<float> device_amax(std::vector<float>{0});
  launch = launch_of(*plugin.cuda, tensors.data(), 1, nullptr, device_amax.get());
  rounding.apply(tensors[0], launch);
  REQUIRE(run(quantizing(*plugin.cuda), launch, tensors) == nullptr);
  const Quantized actual = device.download(format, matrix);
  for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
    CAPTURE(b);
    CHECK(actual.buffer[b] == expected.buffer[b]);
  }
  CHECK(bits_of(actual.amax) == bits_of(expected.amax));

  // Columnwise from the rowwise bytes, where it can be, is what the cast wrote.
  if (plugin.cuda->derive_columnwise != nullptr) {
    for (int b : {NC_COLUMNWISE_DATA, NC_COLUMNWISE_SCALE}) {
      check(cudaMemset(device.buffer[b].get(), 0, device.buffer[b].size()), "clear");
    }
    REQUIRE(run(plugin.cuda->derive_columnwise, launch, tensors) == nullptr);
    CHECK(device.download(format, matrix).buffer[NC_COLUMNWISE_DATA] ==
          expected.buffer[NC_COLUMNWISE_DATA]);
    CHECK(device.download(format, matrix).buffer[NC_COLUMNWISE_SCALE] ==
          expected.buffer[NC_COLUMNWISE_SCALE]);
  }

  // Decoding, both usages.
  const DeviceArray<Type> decoded(values.size());
  std::vector<Type> expected_values(values.size());
  tensor.value = expected_values.data();
  tensors[0].value = decoded.get();
  const nc_launch cpu_launch = launch_of(*plugin.cpu, &tensor, 1);
  for (bool columnwise : {false, true}) {
    CAPTURE(columnwise);
    const auto pick = [&](const nc_machine& machine) {
      return columnwise ? machine.dequantize_columnwise : machine.dequantize_rowwise;
    };
    REQUIRE(pick(*plugin.cpu)(&cpu_launch) == nullptr);
    REQUIRE(run(pick(*plugin.cuda), launch, tensors) == nullptr);
    CHECK(same(decoded.download(), expected_values));
  }
}

bool ready(const nc_plugin& plugin) { return plugin.cuda != nullptr && has_gpu(); }

const std::vector<Extent> kShapes = {
    {1, 1},     {1, 32},    {32, 1},     {16, 48},    {32, 32},     {33, 31},    {36, 52},
    {64, 64},   {65, 96},   {96, 65},    {100, 60},   {127, 400},   {128, 128},  {129, 257},
    {256, 272}, {303, 300}, {304, 304},  {305, 256},  {320, 320},   {993, 512},  {1024, 1},
    {1, 4096},  {2, 4},     {250, 4096}, {4096, 250}, {2000, 2000}, {2048, 2048}};

TEST_CASE("quantize: GPU bytes are CPU bytes") {
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    uint64_t seed = 1;
    for (const Extent matrix : kShapes) {
      if (!holds(*plugin->format, matrix)) continue;
      CAPTURE(matrix.rows);
      CAPTURE(matrix.columns);
      for (const Kind kind : kKinds) {
        CAPTURE(static_cast<int>(kind));
        const std::vector<float> values = draw(kind, matrix.rows * matrix.columns, ++seed);
        expect_equal_casts(*plugin, matrix, values, NC_F32, {});
        expect_equal_casts(*plugin, matrix, values, NC_F32, {.source_bf16 = true});
        for (const uint64_t first : {0, 64, 7}) {
          const Rounding stochastic{
              .stochastic = true, .seed = seed << 40, .step = seed << 30, .first = first};
          expect_equal_casts(*plugin, matrix, values, NC_F32, stochastic);
        }
        expect_equal_casts(*plugin, matrix, narrowed<Bf16>(values), NC_BF16, {});
        expect_equal_casts(*plugin, matrix, narrowed<F16>(values), NC_F16, {});
      }
    }
  }
}

// More than 1e8 elements, with a run of each kind for each block, so that special values do not
// decide every scale.
constexpr Extent kLarge{12288, 8448};

std::vector<float> draw_runs(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  Random random(seed);
  for (size_t first = 0; first < values.size(); first += 256) {
    const Kind kind = kKinds[random.below(5)];
    for (size_t i = first; i < std::min(first + 256, values.size()); ++i)
      values[i] = draw(kind, random);
  }
  return values;
}

TEST_CASE("quantize: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    expect_equal_casts(*plugin, kLarge, draw_runs(kLarge.rows * kLarge.columns, 7), NC_F32, {});
  }
}

template <class Grad, class State>
void expect_equal_updates(const nc_plugin& plugin, const std::vector<Extent>& shapes,
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
    DeviceArray<float> device_master;
    DeviceArray<State> device_exp_avg, device_exp_avg_sq;
    DeviceArray<Grad> device_grad;
    DeviceQuantized device;
  };
  std::vector<Case> cases;
  uint64_t seed = 100;
  for (const Extent matrix : shapes) {
    if (!holds(format, matrix)) continue;
    const int64_t n = matrix.rows * matrix.columns;
    const Kind kind = kKinds[seed % 5];
    std::vector<float> master = draw_runs(n, ++seed), squares = draw(Kind::kOrdinary, n, ++seed);
    for (float& square : squares) square *= square;
    std::vector<State> m = narrowed<State>(draw(Kind::kOrdinary, n, ++seed)),
                       v = narrowed<State>(squares);
    std::vector<Grad> g =
        narrowed<Grad>(draw(kind == Kind::kBits ? kind : Kind::kOrdinary, n, ++seed));
    Quantized q(format, matrix);
    cases.push_back({matrix, master, m, v, g, q, DeviceArray<float>(master), DeviceArray<State>(m),
                     DeviceArray<State>(v), DeviceArray<Grad>(g), DeviceQuantized(q)});
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
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    for (bool decoupled : {true, false}) {
      CAPTURE(decoupled);
      expect_equal_updates<float, float>(*plugin, kShapes, NC_F32, NC_F32, decoupled);
      expect_equal_updates<Bf16, float>(*plugin, kShapes, NC_BF16, NC_F32, decoupled);
      expect_equal_updates<F16, float>(*plugin, kShapes, NC_F16, NC_F32, decoupled);
      expect_equal_updates<Bf16, Bf16>(*plugin, kShapes, NC_BF16, NC_BF16, decoupled);
      expect_equal_updates<Bf16, float>(*plugin, kShapes, NC_BF16, NC_F32, decoupled, true);
    }
  }
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    expect_equal_updates<Bf16, float>(*plugin, {kLarge}, NC_BF16, NC_F32, true);
  }
}

}  // namespace
}  // namespace narrowcast::test
