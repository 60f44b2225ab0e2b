// The optimizer and the casts on this machine's GPU, as shares of the same run's copy bandwidth.
//
// 872M parameters (layers.hpp), bf16 gradients, fp32 master and moments. Bytes are those that must
// move: each input read once, each output written once, padding left out.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/bench/gpu_model.hpp"
#include "tests/bench/gpu_program.hpp"
#include "tests/bench/gpu_timing.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/quantized.hpp"

namespace narrowcast::test {
namespace {

constexpr Extent kSingle[] = {{1024, 4096}, {4096, 4096}, {14336, 4096}};

class Bench {
 public:
  Bench() {
    check(cudaStreamCreate(&stream_), "stream");
    copy_ = copies_.rate(stream_);
    std::printf("copy %.0f GB/s (read plus written), %.0fM parameters\n", copy_ / 1e9,
                model_.parameters() / 1e6);
    std::printf("%-64s %9s %17s %8s %8s %8s\n", "", "ms", "10 to 90 %", "B/param", "of copy",
                "kernels");
    for (const Extent matrix : kSingle) report_single_copy(matrix);
  }

  void run(const nc_plugin& plugin) {
    const nc_format& format = *plugin.format;
    const nc_machine& machine = *plugin.cuda;
    std::vector<nc_tensor> tensors = model_.tensors();
    std::vector<std::vector<DeviceArray<uint8_t>>> buffers;
    int64_t usage_bytes[2] = {};
    for (size_t i = 0; i < tensors.size(); ++i) {
      buffers.emplace_back();
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const int64_t bytes = bytes_of(format, model_.matrices()[i], b);
        usage_bytes[b / 2] += bytes;
        buffers.back().emplace_back(static_cast<size_t>(bytes));
        tensors[i].buffer[b] = buffers.back().back().get();
      }
    }
    const DeviceArray<nc_history> histories(
        std::vector<nc_history>(tensors.size(), nc_history{.present = 1, .next = 1, .amax = {}}));
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].history = histories.get() + i;
    const DeviceArray<float> amax(std::vector<float>(tensors.size(), 0.0f));
    const DeviceArray<nc_step> steps(model_.steps());
    nc_launch launch = launch_of(machine, tensors.data(), static_cast<int64_t>(tensors.size()),
                                 nullptr, amax.get());
    const std::vector<nc_tensor> decoded = model_.decoded_tensors(tensors);
    const DeviceArray<nc_tensor> table(tensors), bf16_table(model_.bf16_tensors(tensors));
    const auto on = [&](nc_function function, const DeviceArray<nc_tensor>& t, bool with_steps) {
      return [&, function, with_steps](cudaStream_t stream) {
        nc_launch l = launch;
        l.tensors = t.get();
        l.steps = with_steps ? steps.get() : nullptr;
        l.stream = stream;
        return function(&l);
      };
    };
    const double written = static_cast<double>(usage_bytes[0] + usage_bytes[1]) /
                           static_cast<double>(model_.parameters());
    const std::string name = format.name;
    // A second pass reads the masters again. Recording an amax moves a few bytes a tensor.
    const bool two_passes = adamw_of(machine).update == nullptr;
    const auto step_of = [&](const DeviceArray<nc_tensor>& t, bool bf16_masters = false) {
      return [&, bf16_masters](cudaStream_t stream) {
        nc_launch l = launch;
        l.bf16_masters = bf16_masters;
        l.tensors = t.get();
        l.steps = steps.get();
        l.stream = stream;
        return update(machine, l);
      };
    };
    const std::string passes =
        two_passes ? ": fused step, both passes" : ": fused step, both usages";
    report(name + passes, (two_passes ? 30 : 26) + written, step_of(table));
    for (int32_t i = 0; i < plugin.state_format_count; ++i) {
      const nc_state_format& state = plugin.state_formats[i];
      const DeviceArray<nc_tensor> coded(model_.coded_tensors(tensors, i));
      const double moments = 4 + 16.0 / static_cast<double>(state.block);
      report(name + passes + ", " + state.name, (two_passes ? 14 : 10) + moments + written,
             step_of(coded));
      const DeviceArray<nc_tensor> narrow(model_.narrow_tensors(model_.coded_tensors(tensors, i)));
      report(name + passes + ", " + state.name + ", bf16 + 8 bits",
             (two_passes ? 10 : 8) + moments + written, step_of(narrow, /*bf16_masters=*/true));
    }
    if (two_passes) {
      report(name + ":   first pass", 26, on(adamw_of(machine).update_amax, table, true));
      report(name + ":   second pass", 4 + written, on(machine.cast, table, true));
    }
    report(name + ": cast fp32, both usages", 4 + written, on(machine.cast, table, false));
    report(name + ": cast bf16, both usages", 2 + written, on(machine.cast, bf16_table, false));
    // Codes have tiles of their own.
    const auto report_codes = [&](const char* what, double bytes, nc_function function,
                                  std::vector<nc_tensor> of) {
      launch.tiles = assign_tiles(of.data(), std::ssize(of), machine, function);
      const DeviceArray<nc_tensor> tiled(of);
      report(name + what, bytes, on(function, tiled, false));
    };
    if (machine.derive_columnwise != nullptr)
      report_codes(": columnwise from rowwise", written, machine.derive_columnwise, tensors);
    report_codes(": dequantize rowwise to fp32", 4 + written / 2, machine.dequantize_rowwise,
                 tensors);
    report_codes(": dequantize rowwise to bf16", 2 + written / 2, machine.dequantize_rowwise,
                 decoded);
    report_codes(": dequantize columnwise to bf16", 2 + written / 2, machine.dequantize_columnwise,
                 decoded);
    for (const Extent matrix : kSingle) {
      report_single(name + ": rowwise to bf16", matrix, 2 + written / 2, machine,
                    machine.dequantize_rowwise, decoded);
      report_single(name + ": columnwise to bf16", matrix, 2 + written / 2, machine,
                    machine.dequantize_columnwise, decoded);
      if (machine.derive_columnwise != nullptr) {
        report_single(name + ": columnwise from rowwise", matrix, written, machine,
                      machine.derive_columnwise, tensors);
      }
    }
  }

  void finish() { std::printf("copy again %.0f GB/s\n", copies_.rate(stream_) / 1e9); }

 private:
  void report(const std::string& name, double bytes_per_parameter, const Work& work) {
    report(name, bytes_per_parameter, static_cast<double>(model_.parameters()), work);
  }

  // What a launch alone costs: copies that move the bytes of an 8-bit weight's decoding to bf16.
  void report_single_copy(Extent matrix) {
    const size_t parameters = static_cast<size_t>(matrix.rows * matrix.columns);
    const size_t bytes = parameters * 3 / 2;
    const size_t count = std::min<size_t>(8, Copy::kBytes / bytes);
    const Work work = [&](cudaStream_t stream) -> const char* {
      for (size_t i = 0; i < count; ++i) copies_.run(stream, i * bytes, bytes);
      return nullptr;
    };
    report("copy [" + std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns) + "]", 3,
           static_cast<double>(parameters * count), work);
  }

  // A launch a weight, of all weights of a shape in turn, so that the cache holds none of them.
  void report_single(const std::string& name, Extent matrix, double bytes_per_parameter,
                     const nc_machine& machine, nc_function function,
                     std::vector<nc_tensor> tensors) {
    std::erase_if(tensors, [&](const nc_tensor& tensor) {
      return Extent{tensor.rows, tensor.columns} != matrix;
    });
    const Work work = [&](cudaStream_t stream) -> const char* {
      for (nc_tensor& tensor : tensors) {
        nc_launch launch = launch_of(machine, &tensor, 1, nullptr, nullptr, function);
        launch.host_tables = true;
        launch.stream = stream;
        if (const char* fault = function(&launch)) return fault;
      }
      return nullptr;
    };
    const int64_t parameters = matrix.rows * matrix.columns * static_cast<int64_t>(tensors.size());
    report(name + " [" + std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns) + "]",
           bytes_per_parameter, static_cast<double>(parameters), work);
  }

  void report(const std::string& name, double bytes_per_parameter, double parameters,
              const Work& work) {
    const Time time = measure(stream_, work);
    const double rate = bytes_per_parameter * parameters / time.median * 1e3;
    std::printf("%-48s %9.3f %8.3f %8.3f %8.2f %7.1f%% %8d\n", name.c_str(), time.median, time.low,
                time.high, bytes_per_parameter, 100 * rate / copy_, kernels_of(stream_, work));
    std::fflush(stdout);
  }

  Model model_;
  Copy copies_;
  cudaStream_t stream_ = nullptr;
  double copy_ = 0;
};

}  // namespace
}  // namespace narrowcast::test

int main(int argc, char** argv) {
  using namespace narrowcast::test;
  return gpu_program("bench_cuda", argc, argv, [](const std::vector<const nc_plugin*>& plugins) {
    Bench bench;
    for (const nc_plugin* plugin : plugins) bench.run(*plugin);
    bench.finish();
  });
}
