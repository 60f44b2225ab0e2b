// Casts of a flat shard on this machine's GPU, as shares of the same run's copy bandwidth: one of
// eight owners of all layers' weights, laid one after the other and cut into equal parts, as a
// distributed optimizer has them. And what the owners reduce, beside one float a block.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "runtime/launch/cuts.hpp"
#include "tests/bench/flat_layers.hpp"
#include "tests/bench/gpu_program.hpp"
#include "tests/bench/gpu_timing.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

int64_t blocks_of(const nc_layout& layout, Extent matrix) {
  if (spans_tensor(layout)) return 1;
  return ceil_div(matrix.rows, layout.block_rows) * ceil_div(matrix.columns, layout.block_columns);
}

class Bench {
 public:
  Bench() {
    check(cudaStreamCreate(&stream_), "stream");
    const Copy copy;
    copy_ = copy.rate(stream_);
    const int64_t elements = elements_of_layers();
    share_ = elements / kOwners;
    std::printf("copy %.0f GB/s (read plus written); %.0fM of %.0fM parameters\n", copy_ / 1e9,
                static_cast<double>(share_) / 1e6, static_cast<double>(elements) / 1e6);
    std::printf("%-24s %9s %17s %8s %8s %8s %10s %12s\n", "flat shards", "ms", "10 to 90 %",
                "B/param", "of copy", "kernels", "B reduced", "times fewer");
    const std::vector<float> pool = draw(Kind::kOrdinary, int64_t{1} << 24, 1);
    master_ = std::make_unique<DeviceArray<float>>(repeated(pool, static_cast<size_t>(share_)));
  }

  void run(const nc_plugin& plugin) {
    const nc_format& format = *plugin.format;
    const nc_machine& machine = *plugin.cuda;
    const bool columnwise = !format.columnwise_derived;
    std::vector<DeviceArray<uint8_t>> buffers;
    std::vector<nc_tensor> shards;
    std::vector<Cuts> cuts;
    std::vector<nc_seams> seams;
    int64_t slots = 0, blocks = 0, own = 0;
    double written = 0;
    for (const Piece& piece : pieces_of(share_)) {
      const Cuts of_piece(format, piece.matrix, columnwise, piece.cuts, slots);
      slots += of_piece.amaxes() + of_piece.values();
      blocks += blocks_of(format.rowwise, piece.matrix) +
                (columnwise ? blocks_of(format.columnwise, piece.matrix) : 0);
      if (piece.begin == piece.end) continue;
      nc_tensor tensor = tensor_of(piece.matrix);
      const auto first = reinterpret_cast<uintptr_t>(master_->get() + own);
      tensor.value = reinterpret_cast<void*>(first - piece.begin * sizeof(float));
      const double part = static_cast<double>(piece.end - piece.begin) /
                          static_cast<double>(piece.matrix.rows * piece.matrix.columns);
      for (int b = 0; b < (columnwise ? NC_BUFFER_COUNT : NC_COLUMNWISE_DATA); ++b) {
        const int64_t bytes = bytes_of(format, piece.matrix, b);
        written += part * static_cast<double>(bytes);
        tensor.buffer[b] = buffers.emplace_back(static_cast<size_t>(bytes)).get();
      }
      own += piece.end - piece.begin;
      set_shard(tensor, machine, piece.begin, piece.end, nullptr);
      shards.push_back(tensor);
      cuts.push_back(of_piece);
      seams.push_back(of_piece.seams(piece.begin, piece.end));
    }
    const DeviceArray<nc_seams> seams_there(seams);
    const DeviceArray<nc_history> histories(
        std::vector<nc_history>(shards.size(), {.present = 1, .next = 1, .amax = {}}));
    const DeviceArray<float> amaxes(std::vector<float>(shards.size(), 1.0f));
    const DeviceArray<float> exchange(std::vector<float>(static_cast<size_t>(slots) + 1, 1.0f));
    std::vector<nc_tensor> ends;
    for (size_t i = 0; i < shards.size(); ++i) {
      shards[i].seams = seams_there.get() + i;
      shards[i].history = histories.get() + i;
      const auto divides = [&](int64_t cut) { return cuts[i].divides(cut); };
      for (const nc_tensor& end : shard_ends(shards[i], machine, divides)) ends.push_back(end);
    }
    const bool spans = format.tensor_amax != 0, delayed = machine.record_amax != nullptr;
    const auto run_on = [&](nc_function function, std::vector<nc_tensor>& of, cudaStream_t stream) {
      nc_launch launch = launch_of(machine, of.data(), std::ssize(of), nullptr, amaxes.get());
      launch.host_tables = true;
      launch.exchange = exchange.get();
      launch.stream = stream;
      return of.empty() ? nullptr : function(&launch);
    };
    const Work work = [&](cudaStream_t stream) {
      if (const char* fault = run_on(machine.collect, spans ? shards : ends, stream)) return fault;
      return run_on(delayed ? machine.record_amax : machine.cast, shards, stream);
    };
    const int64_t reduced = 4 * (slots + (spans ? std::ssize(all_layers()) : 0));
    const double bytes = (spans && !delayed ? 8 : 4) + written / static_cast<double>(own);
    report(format.name, bytes, reduced, 4 * blocks, work);
  }

 private:
  void report(const std::string& name, double bytes_per_parameter, int64_t reduced, int64_t all,
              const Work& work) {
    const Time time = measure(stream_, work);
    const double rate = bytes_per_parameter * static_cast<double>(share_) / time.median * 1e3;
    std::printf("%-24s %9.3f %8.3f %8.3f %8.2f %7.1f%% %8d %10lld %12.0f\n", name.c_str(),
                time.median, time.low, time.high, bytes_per_parameter, 100 * rate / copy_,
                kernels_of(stream_, work), static_cast<long long>(reduced),
                reduced == 0 ? 0.0 : static_cast<double>(all) / static_cast<double>(reduced));
    std::fflush(stdout);
  }

  int64_t share_ = 0;
  std::unique_ptr<DeviceArray<float>> master_;
  cudaStream_t stream_ = nullptr;
  double copy_ = 0;
};

}  // namespace
}  // namespace narrowcast::test

int main(int argc, char** argv) {
  using namespace narrowcast::test;
  return gpu_program("bench_shards", argc, argv, [](const std::vector<const nc_plugin*>& plugins) {
    Bench bench;
    for (const nc_plugin* plugin : plugins) bench.run(*plugin);
  });
}
