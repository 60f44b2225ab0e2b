// How a launch of the GPU may come: tables in the host's memory, matrices at any address, tensors
// that it is to skip. The bytes are the CPU's each time.
#include <doctest/doctest.h>

#include <deque>

#include "tests/support/adamw.hpp"
#include "tests/support/cuda_quantized.hpp"
#include "tests/support/large_values.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

constexpr Extent kMatrices[] = {{64, 128}, {96, 272}, {304, 304}, {1, 32}, {256, 1056}};

// One matrix on both machines, with masters and moments.
struct Both {
  Extent matrix;
  std::vector<float> value, exp_avg, exp_avg_sq, grad;
  Quantized expected;
  DeviceArray<float> device_value{value}, device_exp_avg{exp_avg}, device_exp_avg_sq{exp_avg_sq},
      device_grad{grad};
  DeviceQuantized device{expected};

  Both(const nc_format& format, Extent matrix, uint64_t seed)
      : matrix(matrix),
        value(draw(Kind::kOrdinary, matrix.rows * matrix.columns, seed)),
        exp_avg(value.size(), 0.0f),
        exp_avg_sq(value.size(), 0.0f),
        grad(draw(Kind::kOrdinary, matrix.rows * matrix.columns, seed + 1)),
        expected(format, matrix) {}

  nc_tensor on_cpu(const nc_format& format) {
    nc_tensor tensor = tensor_of(matrix);
    tensor.value = value.data();
    tensor.state[0] = exp_avg.data();
    tensor.state[1] = exp_avg_sq.data();
    expected.connect(format, tensor);
    return tensor;
  }
  nc_tensor on_gpu(const nc_format& format) {
    nc_tensor tensor = tensor_of(matrix);
    tensor.value = device_value.get();
    tensor.state[0] = device_exp_avg.get();
    tensor.state[1] = device_exp_avg_sq.get();
    device.connect(format, tensor);
    return tensor;
  }
};

// The matrices of a format, their tables, and one amax and one verdict each.
struct Group {
  const nc_plugin& plugin;
  std::deque<Both> all;
  std::vector<nc_tensor> tensors, device_tensors;
  std::vector<nc_step> steps, device_steps;
  std::vector<float> amax, verdict;
  DeviceArray<float> device_amax, device_verdict;

  explicit Group(const nc_plugin& plugin)
      : plugin(plugin),
        amax(std::size(kMatrices), 0.0f),
        verdict(amax),
        device_amax(amax),
        device_verdict(amax) {
    for (const Extent matrix : kMatrices) {
      if (!holds(*plugin.format, matrix)) continue;
      Both& both = all.emplace_back(*plugin.format, matrix, 50 + all.size());
      tensors.push_back(both.on_cpu(*plugin.format));
      device_tensors.push_back(both.on_gpu(*plugin.format));
      nc_step step = adamw_step({1e-3, 0.9, 0.95, 1e-8, 0.1, true}, 3);
      step.grad = both.grad.data();
      steps.push_back(step);
      step.grad = both.device_grad.get();
      device_steps.push_back(step);
    }
  }

  void run(const std::vector<nc_function>& on_cpu, const std::vector<nc_function>& on_gpu,
           bool updating) {
    const int64_t count = static_cast<int64_t>(all.size());
    nc_launch launch = launch_of(*plugin.cpu, tensors.data(), count,
                                 updating ? steps.data() : nullptr, amax.data());
    launch.verdict = verdict.data();
    launch.stochastic = true;
    REQUIRE(run_all(on_cpu, launch) == nullptr);
    launch = launch_of(*plugin.cuda, device_tensors.data(), count,
                       updating ? device_steps.data() : nullptr, device_amax.get(), on_gpu[0]);
    launch.verdict = device_verdict.get();
    launch.stochastic = true;
    launch.host_tables = true;
    REQUIRE(run_all(on_gpu, launch) == nullptr);
  }

  void expect_equal() const {
    for (const Both& both : all) {
      CAPTURE(both.matrix.rows);
      CHECK(same(both.value, both.device_value.download()));
      CHECK(both.expected == both.device.download(*plugin.format, both.matrix));
    }
  }
};

TEST_CASE("tables in the host's memory: GPU bytes are CPU bytes") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    const nc_machine &cpu = *plugin->cpu, &gpu = *plugin->cuda;
    Group group(*plugin);
    group.run(quantizing(cpu), quantizing(gpu), /*updating=*/false);
    group.expect_equal();
    if (cpu.derive_columnwise != nullptr)
      group.run({cpu.derive_columnwise}, {gpu.derive_columnwise}, /*updating=*/false);
    group.expect_equal();
    group.amax.assign(group.amax.size(), 0.0f);
    group.device_amax.upload(group.amax);
    group.run(updating(cpu), updating(gpu), /*updating=*/true);
    group.expect_equal();
    group.run({cpu.dequantize_rowwise}, {gpu.dequantize_rowwise}, /*updating=*/false);
    group.expect_equal();
    group.run({cpu.dequantize_columnwise}, {gpu.dequantize_columnwise}, /*updating=*/false);
    group.expect_equal();
  }
}

TEST_CASE("more tensors than a kernel's parameters hold are refused") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    std::vector<nc_tensor> tensors(NC_PARAMETER_TENSORS + 1, tensor_of({32, 32}));
    nc_launch launch = launch_of(*plugin->cuda, tensors.data(), NC_PARAMETER_TENSORS + 1);
    launch.host_tables = true;
    const char* fault = plugin->cuda->cast(&launch);
    REQUIRE(fault != nullptr);
    CHECK(std::string(fault).find("more tensors") != std::string::npos);
  }
}

TEST_CASE("a negative verdict leaves the tensor as it is, on the GPU") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    Group group(*plugin);
    group.amax.assign(group.amax.size(), 0.125f);
    for (size_t i = 0; i < group.verdict.size(); i += 2) group.verdict[i] = -1.0f;
    group.device_amax.upload(group.amax);
    group.device_verdict.upload(group.verdict);
    const auto functions = [](const nc_machine& machine) {
      return present({machine.start_history, machine.cast, machine.record_amax});
    };
    group.run(functions(*plugin->cpu), functions(*plugin->cuda), /*updating=*/false);
    group.expect_equal();
    CHECK(group.all[0].expected == Quantized(*plugin->format, group.all[0].matrix));
    CHECK(!(group.all[1].expected == Quantized(*plugin->format, group.all[1].matrix)));
  }
}

// Codes one byte behind an aligned address, and values one element behind it.
template <class Type>
void expect_equal_values_anywhere(const nc_plugin& plugin, Extent matrix, nc_dtype dtype) {
  Both both(*plugin.format, matrix, 90);
  nc_tensor tensor = both.on_cpu(*plugin.format);
  float amax = 0;
  REQUIRE(quantize(*plugin.cpu, launch_of(*plugin.cpu, &tensor, 1, nullptr, &amax)) == nullptr);
  DeviceQuantized device(both.expected);
  device.amax.upload({both.expected.amax});
  nc_tensor device_tensor = tensor_of(matrix);
  device.connect(*plugin.format, device_tensor);
  std::vector<DeviceArray<uint8_t>> shifted;
  for (int b : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
    std::vector<uint8_t> bytes = both.expected.buffer[b];
    bytes.insert(bytes.begin(), 0);
    shifted.emplace_back(bytes);
    device_tensor.buffer[b] = shifted.back().get() + 1;
  }
  std::vector<Type> values(both.value.size());
  const DeviceArray<Type> device_values(values.size() + 1);
  tensor.value = values.data();
  device_tensor.value = device_values.get() + 1;
  tensor.value_dtype = device_tensor.value_dtype = dtype;
  const nc_launch launch = launch_of(*plugin.cpu, &tensor, 1);
  for (bool columnwise : {false, true}) {
    CAPTURE(columnwise);
    const auto pick = [&](const nc_machine& machine) {
      return columnwise ? machine.dequantize_columnwise : machine.dequantize_rowwise;
    };
    REQUIRE(pick(*plugin.cpu)(&launch) == nullptr);
    const nc_function function = pick(*plugin.cuda);
    nc_launch device_launch =
        launch_of(*plugin.cuda, &device_tensor, 1, nullptr, nullptr, function);
    device_launch.host_tables = true;
    REQUIRE(function(&device_launch) == nullptr);
    std::vector<Type> actual = device_values.download();
    actual.erase(actual.begin());
    CHECK(same(actual, values));
  }
}

TEST_CASE("decodings at any address: GPU values are CPU values") {
  if (!has_gpu()) return;
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    for (const Extent matrix : {Extent{304, 304}, Extent{128, 272}}) {
      expect_equal_values_anywhere<float>(*plugin, matrix, NC_F32);
      expect_equal_values_anywhere<Bf16>(*plugin, matrix, NC_BF16);
      expect_equal_values_anywhere<F16>(*plugin, matrix, NC_F16);
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
