// The fused step on this machine's CPU, against Adam alone in the same run: bf16 gradients, fp32
// master and moments, all threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/numeric/narrow.hpp"
#include "runtime/optimizer/plain.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/plugins.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/threads.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

constexpr Extent kMatrix{4096, 16384};
constexpr int kRepeats = 7;

// Seconds, the best of several: other work on the machine only ever adds.
double best_of(const std::function<const char*()>& work) {
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (const char* fault = work()) throw std::runtime_error(fault);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void run(const std::vector<std::string>& formats) {
  const int64_t n = kMatrix.rows * kMatrix.columns;
  std::vector<float> master = draw(Kind::kOrdinary, n, 1), exp_avg = draw(Kind::kOrdinary, n, 2),
                     exp_avg_sq(n);
  std::vector<Bf16> grad(n);
  for (int64_t i = 0; i < n; ++i) {
    exp_avg_sq[i] = exp_avg[i] * exp_avg[i];
    grad[i] = narrow<Bf16>(exp_avg[i]);
  }
  nc_step step = adamw_step({1e-6, 0.9, 0.95, 1e-8, 0.1, true}, 1000);
  step.grad = grad.data();
  step.grad_dtype = NC_BF16;

  const auto tensor_with_state = [&](Extent matrix) {
    nc_tensor tensor = tensor_of(matrix);
    tensor.value = master.data();
    tensor.state[0] = exp_avg.data();
    tensor.state[1] = exp_avg_sq.data();
    return tensor;
  };
  nc_tensor flat = tensor_with_state({1, n});
  nc_launch alone = launch_of(*plain_plugin().cpu, &flat, 1, &step);
  alone.parallel_for = on_all_threads;
  const double adam = best_of([&] { return adamw_of(*plain_plugin().cpu).update(&alone); });
  std::printf("%-30s %8.2f ns/1000 elements (%u threads)\n", "Adam alone", adam / n * 1e12,
              std::thread::hardware_concurrency());

  for (const nc_plugin* plugin : all_plugins()) {
    const bool wanted =
        std::find(formats.begin(), formats.end(), plugin->format->name) != formats.end();
    if (!formats.empty() && !wanted) continue;
    Quantized quantized(*plugin->format, kMatrix);
    nc_tensor tensor = tensor_with_state(kMatrix);
    quantized.connect(*plugin->format, tensor);
    for (const char* const* name = plugin->cpu_variants; *name != nullptr; ++name) {
      if (std::string(*name) == "baseline")
        continue;  // without fma instructions every element calls the C library
      const nc_machine& machine = *plugin->cpu_variant(*name);
      float amax = 0;
      nc_launch launch = launch_of(machine, &tensor, 1, &step, &amax);
      launch.parallel_for = on_all_threads;
      const double fused = best_of([&] { return update(machine, launch); });
      std::printf("%-20s %-9s %8.2f ns/1000 elements, %.2f times Adam alone\n",
                  plugin->format->name, *name, fused / n * 1e12, fused / adam);
    }
  }
}

}  // namespace
}  // namespace narrowcast::test

// Measures the formats that are named, or all.
int main(int argc, char** argv) {
  try {
    narrowcast::test::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cpu: %s\n", error.what());
    return 1;
  }
}
