// Casts of activations on this machine's GPU, as shares of the same run's copy bandwidth: bf16
// tensors of 8192 tokens, one launch each, of several tensors in turn, so that the cache holds
// none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/numeric/narrow.hpp"
#include "tests/bench/gpu_program.hpp"
#include "tests/bench/gpu_timing.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

constexpr Extent kShapes[] = {{8192, 14336}, {8192, 4096}};
constexpr int kTensors = 4;  // of a shape

class Bench {
 public:
  Bench() {
    check(cudaStreamCreate(&stream_), "stream");
    {
      const Copy copy;
      copy_ = copy.rate(stream_);
    }
    std::printf("copy %.0f GB/s (read plus written)\n", copy_ / 1e9);
    std::printf("%-40s %9s %17s %8s %8s\n", "casts of bf16 activations", "us", "10 to 90 %",
                "B/value", "of copy");
    std::vector<Bf16> pool;
    for (float value : draw(Kind::kOrdinary, int64_t{1} << 24, 1))
      pool.push_back(narrow<Bf16>(value));
    for (int i = 0; i < kTensors; ++i)
      values_.push_back(repeated(pool, static_cast<size_t>(kShapes[0].rows * kShapes[0].columns)));
  }

  void run(const nc_plugin& plugin, Extent matrix) {
    const nc_format& format = *plugin.format;
    const nc_machine& machine = *plugin.cuda;
    const DeviceArray<float> amax(std::vector<float>(1, 4.0f));
    const DeviceArray<nc_history> history(
        std::vector<nc_history>(1, nc_history{.present = 1, .next = 1, .amax = {}}));
    std::vector<nc_tensor> tensors;
    std::vector<DeviceArray<uint8_t>> buffers;
    double written = 0;
    for (int i = 0; i < kTensors; ++i) {
      nc_tensor tensor = tensor_of(matrix);
      tensor.value = values_[i].get();
      tensor.value_dtype = NC_BF16;
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const int64_t bytes = bytes_of(format, matrix, b);
        buffers.emplace_back(static_cast<size_t>(bytes));
        tensor.buffer[b] = buffers.back().get();
        if (i == 0) written += static_cast<double>(bytes);
      }
      if (format.tensor_amax) tensor.amax = amax.get();
      tensor.history = history.get();
      tensors.push_back(tensor);
    }
    // Of every tensor in turn; `first` may be NULL.
    const auto each = [&](nc_function first, nc_function second, bool stochastic) -> Work {
      return [&, first, second, stochastic](cudaStream_t stream) -> const char* {
        for (nc_tensor& tensor : tensors) {
          nc_launch launch = launch_of(machine, &tensor, 1, nullptr, amax.get());
          launch.host_tables = true;
          launch.stochastic = stochastic;
          launch.stream = stream;
          if (first != nullptr) must(first(&launch));
          must(second(&launch));
        }
        return nullptr;
      };
    };
    const double elements = static_cast<double>(matrix.rows * matrix.columns);
    const double cast = 2 + written / elements;
    const std::string name =
        std::string(format.name) + " [8192 x " + std::to_string(matrix.columns) + "]";
    report(name, elements, cast, each(nullptr, machine.cast, false));
    if (format.tensor_amax) {
      report("  its amax", elements, 2, each(nullptr, machine.reduce_amax, false));
      report("  amax and cast", elements, 2 + cast, each(machine.reduce_amax, machine.cast, false));
    }
    report("  rounded stochastically", elements, cast, each(nullptr, machine.cast, true));
  }

 private:
  void report(const std::string& name, double elements, double bytes_per_value, const Work& work) {
    const Time time = measure(stream_, work);
    const double rate = bytes_per_value * elements * kTensors / time.median * 1e3;
    const auto one = [](double milliseconds) { return milliseconds * 1e3 / kTensors; };
    std::printf("%-40s %9.1f %8.1f %8.1f %8.2f %7.1f%%\n", name.c_str(), one(time.median),
                one(time.low), one(time.high), bytes_per_value, 100 * rate / copy_);
    std::fflush(stdout);
  }

  std::vector<DeviceArray<Bf16>> values_;
  cudaStream_t stream_ = nullptr;
  double copy_ = 0;
};

}  // namespace
}  // namespace narrowcast::test

int main(int argc, char** argv) {
  using namespace narrowcast::test;
  return gpu_program("bench_activations", argc, argv,
                     [](const std::vector<const nc_plugin*>& plugins) {
                       Bench bench;
                       for (const nc_plugin* plugin : plugins) {
                         for (const narrowcast::Extent matrix : kShapes) bench.run(*plugin, matrix);
                       }
                     });
}
