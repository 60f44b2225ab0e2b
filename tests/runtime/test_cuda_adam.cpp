// The law, between the machines: for every format, masters, moments and bytes after updates on the
// GPU are the CPU's.
#include <doctest/doctest.h>

#include "tests/support/adamw.hpp"
#include "tests/support/cuda_quantized.hpp"
#include "tests/support/large_values.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

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

// What a moment is kept as: numbers, or the codes of a state format, which begin as zeros.
template <class State>
std::vector<State> kept_as(const std::vector<float>& moments) {
  return narrowed<State>(moments);
}
template <>
std::vector<uint8_t> kept_as(const std::vector<float>& moments) {
  return std::vector<uint8_t>(moments.size());
}

// One for each block of the rows of a matrix; none where the state is numbers.
std::vector<float> scales_of(Extent matrix, int32_t state_dtype) {
  if (state_dtype < NC_STATE_FORMAT) return {};
  const int64_t block = plain_plugin().state_formats[state_dtype - NC_STATE_FORMAT].block;
  return std::vector<float>(matrix.rows * ceil_div(matrix.columns, block));
}

// Residuals of masters, of every value; none where there are no residuals.
std::vector<int8_t> residuals_of(Extent matrix, bool has_residuals) {
  std::vector<int8_t> made(has_residuals ? matrix.rows * matrix.columns : 0);
  for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<int8_t>(i * 37);
  return made;
}

// `Value`: of masters; bfloat16 ones may have residuals.
template <class Grad, class State, class Value = float>
void expect_equal_updates(const nc_plugin& plugin, const std::vector<Drawn>& all,
                          nc_dtype grad_dtype, int32_t state_dtype, bool decoupled,
                          bool stochastic = false, bool has_residuals = false) {
  const nc_format& format = *plugin.format;
  const std::array<double, 6> options{1e-3, 0.9, 0.95, 1e-8, 0.1, decoupled ? 1.0 : 0.0};
  struct Case {
    Extent matrix;
    std::vector<Value> master;
    std::vector<int8_t> residual;
    std::vector<State> exp_avg, exp_avg_sq;
    std::vector<Grad> grad;
    std::vector<float> scale[NC_STATE_COUNT];
    Quantized quantized;
    DeviceArray<Value> device_master{master};
    DeviceArray<int8_t> device_residual{residual};
    DeviceArray<State> device_exp_avg{exp_avg}, device_exp_avg_sq{exp_avg_sq};
    DeviceArray<Grad> device_grad{grad};
    DeviceArray<float> device_scale[NC_STATE_COUNT]{DeviceArray<float>{scale[0]},
                                                    DeviceArray<float>{scale[1]}};
    DeviceQuantized device{quantized};

    Case(const nc_format& format, const Drawn& drawn, int32_t state_dtype, bool has_residuals)
        : matrix(drawn.matrix),
          master(narrowed<Value>(drawn.master)),
          residual(residuals_of(matrix, has_residuals)),
          exp_avg(kept_as<State>(drawn.exp_avg)),
          exp_avg_sq(kept_as<State>(drawn.exp_avg_sq)),
          grad(narrowed<Grad>(drawn.grad)),
          scale{scales_of(matrix, state_dtype), scales_of(matrix, state_dtype)},
          quantized(format, matrix) {}
  };
  std::vector<Case> cases;
  for (const Drawn& drawn : all) {
    if (holds(format, drawn.matrix)) cases.emplace_back(format, drawn, state_dtype, has_residuals);
  }
  for (int64_t t = 1; t <= 3; ++t) {
    std::vector<nc_tensor> tensors, device_tensors;
    std::vector<nc_step> steps, device_steps;
    for (Case& c : cases) {
      nc_tensor tensor = tensor_of(c.matrix);
      tensor.state_dtype = state_dtype;
      tensor.value_dtype = std::is_same_v<Value, float> ? NC_F32 : NC_BF16;
      tensor.seed = static_cast<uint64_t>(tensors.size());
      nc_tensor device_tensor = tensor;
      tensor.value = c.master.data();
      tensor.state[0] = c.exp_avg.data();
      tensor.state[1] = c.exp_avg_sq.data();
      for (int k = 0; k < NC_STATE_COUNT; ++k) {
        tensor.state_scale[k] = c.scale[k].data();
        device_tensor.state_scale[k] = c.device_scale[k].get();
      }
      if (has_residuals) {
        tensor.residual = c.residual.data();
        device_tensor.residual = c.device_residual.get();
      }
      c.quantized.connect(format, tensor);
      device_tensor.value = c.device_master.get();
      device_tensor.state[0] = c.device_exp_avg.get();
      device_tensor.state[1] = c.device_exp_avg_sq.get();
      c.device.connect(format, device_tensor);
      nc_step step = adamw_step(options, t);
      step.grad_dtype = grad_dtype;
      if (t == 2) step.grad_multiplier = 1.0f / 3.0f;
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
    device_launch.bf16_masters = std::is_same_v<Value, Bf16>;
    REQUIRE(run(updating(*plugin.cuda), device_launch, device_tensors, device_steps) == nullptr);
  }
  for (Case& c : cases) {
    CAPTURE(c.matrix.rows);
    CAPTURE(c.matrix.columns);
    CHECK(same(c.master, c.device_master.download()));
    CHECK(same(c.residual, c.device_residual.download()));
    CHECK(same(c.exp_avg, c.device_exp_avg.download()));
    CHECK(same(c.exp_avg_sq, c.device_exp_avg_sq.download()));
    for (int k = 0; k < NC_STATE_COUNT; ++k) CHECK(same(c.scale[k], c.device_scale[k].download()));
    CHECK(c.quantized == c.device.download(format, c.matrix));
  }
}

// Calls check(plugin, drawn) for every format. `drawn`: a matrix of each shape.
template <class Check>
void on_all_shapes(const Check& check) {
  if (!has_gpu()) return;
  std::vector<Drawn> drawn;
  for (const Extent matrix : kShapes) drawn.emplace_back(matrix, 25 + drawn.size());
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    check(*plugin, drawn);
  }
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes") {
  on_all_shapes([](const nc_plugin& plugin, const std::vector<Drawn>& drawn) {
    expect_equal_updates<float, float>(plugin, drawn, NC_F32, NC_F32, true);
    expect_equal_updates<float, float>(plugin, drawn, NC_F32, NC_F32, false);
    expect_equal_updates<Bf16, float>(plugin, drawn, NC_BF16, NC_F32, true);
    expect_equal_updates<F16, float>(plugin, drawn, NC_F16, NC_F32, false);
    expect_equal_updates<Bf16, Bf16>(plugin, drawn, NC_BF16, NC_BF16, true);
    expect_equal_updates<Bf16, float>(plugin, drawn, NC_BF16, NC_F32, true, true);
    for (int32_t state = 0; state < plugin.state_format_count; ++state) {
      const int32_t dtype = NC_STATE_FORMAT + state;
      expect_equal_updates<Bf16, uint8_t>(plugin, drawn, NC_BF16, dtype, true);
      expect_equal_updates<float, uint8_t>(plugin, drawn, NC_F32, dtype, false, true);
    }
  });
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes, of bfloat16 masters") {
  on_all_shapes([](const nc_plugin& plugin, const std::vector<Drawn>& drawn) {
    for (const bool residuals : {true, false}) {
      CAPTURE(residuals);
      expect_equal_updates<Bf16, float, Bf16>(plugin, drawn, NC_BF16, NC_F32, true, false,
                                              residuals);
      expect_equal_updates<float, float, Bf16>(plugin, drawn, NC_F32, NC_F32, false, true,
                                               residuals);
      expect_equal_updates<Bf16, Bf16, Bf16>(plugin, drawn, NC_BF16, NC_BF16, true, true,
                                             residuals);
      for (int32_t state = 0; state < plugin.state_format_count; ++state) {
        const int32_t dtype = NC_STATE_FORMAT + state;
        expect_equal_updates<Bf16, uint8_t, Bf16>(plugin, drawn, NC_BF16, dtype, true, false,
                                                  residuals);
        expect_equal_updates<F16, uint8_t, Bf16>(plugin, drawn, NC_F16, dtype, false, true,
                                                 residuals);
      }
    }
  });
}

TEST_CASE("fused Adam: GPU bytes are CPU bytes, over 1e8 elements of every kind") {
  if (!has_gpu()) return;
  std::vector<Drawn> drawn;
  drawn.emplace_back(kLarge, 25);
  for (const nc_plugin* plugin : all_plugins()) {
    if (!ready(*plugin)) continue;
    CAPTURE(std::string(plugin->format->name));
    expect_equal_updates<Bf16, float>(*plugin, drawn, NC_BF16, NC_F32, true);
    expect_equal_updates<Bf16, uint8_t>(*plugin, drawn, NC_BF16, NC_STATE_FORMAT, true);
    expect_equal_updates<Bf16, uint8_t, Bf16>(*plugin, drawn, NC_BF16, NC_STATE_FORMAT, true, false,
                                              /*has_residuals=*/true);
  }
}

}  // namespace
}  // namespace narrowcast::test
