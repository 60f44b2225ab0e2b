// Casts and fused steps of a flat shard on this machine's GPU, as shares of the same run's copy
// bandwidth, and of a copy of as many bytes, which has as long to begin and to end: one of eight
// owners of Llama's layers, laid one after the other and cut into equal parts, as a distributed
// optimizer has them. And what the owners reduce, beside one float a block; that depends on which
// rows the cuts fall into, so also what it is on average where each may fall anywhere. The
// reduction itself is left out.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "runtime/launch/cuts.hpp"
#include "runtime/numeric/narrow.hpp"
#include "tests/bench/flat_layers.hpp"
#include "tests/bench/gpu_program.hpp"
#include "tests/bench/gpu_timing.hpp"
#include "tests/bench/reduced_bytes.hpp"
#include "tests/support/adamw.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/values.hpp"

namespace narrowcast::test {
namespace {

// What an optimizer has of the owner's elements.
struct State {
  explicit State(size_t share)
      : master(repeated(draw(Kind::kOrdinary, kPool, 1), share)),
        exp_avg(repeated(std::vector<float>(kPool, 0.01f), share)),
        exp_avg_sq(repeated(std::vector<float>(kPool, 0.01f), share)),
        grad(repeated(std::vector<Bf16>(kPool, narrow<Bf16>(0.1f)), share)) {}

  static constexpr int64_t kPool = int64_t{1} << 24;

  DeviceArray<float> master, exp_avg, exp_avg_sq;
  DeviceArray<Bf16> grad;
};

// The owner's shards in one format, and the launches over them.
class Owner {
 public:
  Owner(const nc_plugin& plugin, const State& state)
      : format_(*plugin.format), machine_(*plugin.cuda) {
    const bool columnwise = !format_.columnwise_derived;
    std::vector<Cuts> cuts;
    std::vector<nc_seams> seams;
    for (const Piece& piece : pieces_of()) {
      const Cuts of_piece(format_, piece.matrix, columnwise, piece.cuts, slots_);
      slots_ += of_piece.amaxes() + of_piece.values();
      if (piece.begin == piece.end) continue;
      add(piece, state, columnwise);
      cuts.push_back(of_piece);
      seams.push_back(of_piece.seams(piece.begin, piece.end));
    }
    seams_ = std::make_unique<DeviceArray<nc_seams>>(seams);
    histories_ = std::make_unique<DeviceArray<nc_history>>(
        std::vector<nc_history>(shards_.size(), {.present = 1, .next = 1, .amax = {}}));
    amaxes_ = std::make_unique<DeviceArray<float>>(std::vector<float>(shards_.size(), 1.0f));
    exchange_ = std::make_unique<DeviceArray<float>>(
        std::vector<float>(static_cast<size_t>(slots_) + 1, 1.0f));
    for (size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].seams = seams_->get() + i;
      shards_[i].history = histories_->get() + i;
      const auto divides = [&](int64_t cut) { return cuts[i].divides(cut); };
      for (const nc_tensor& end : shard_ends(shards_[i], machine_, divides)) {
        ends_.push_back(end);
        end_steps_.push_back(steps_[i]);
      }
    }
  }

  const char* cast(cudaStream_t stream) {
    std::vector<nc_tensor>& collected = spans() ? shards_ : ends_;
    if (const char* fault = run(machine_.collect, collected, nullptr, stream)) return fault;
    return run(is_delayed() ? machine_.record_amax : machine_.cast, shards_, nullptr, stream);
  }

  const char* step(cudaStream_t stream) {
    const bool waits = adamw_of(machine_).update == nullptr;
    const nc_function update = waits ? adamw_of(machine_).update_amax : adamw_of(machine_).update;
    if (const char* fault = run(update, shards_, steps_.data(), stream)) return fault;
    if (is_delayed()) return run(machine_.record_amax, shards_, steps_.data(), stream);
    return waits ? run(machine_.cast, shards_, steps_.data(), stream)
                 : run(machine_.cast, ends_, end_steps_.data(), stream);
  }

  // Bytes that one element makes memory move.
  double cast_bytes() const { return (reads_twice() ? 8 : 4) + written(); }
  double step_bytes() const { return (reads_twice() ? 30 : 26) + written(); }

 private:
  bool spans() const { return format_.tensor_amax != 0; }
  bool is_delayed() const { return machine_.record_amax != nullptr; }
  bool reads_twice() const { return spans() && !is_delayed(); }
  double written() const { return written_ / static_cast<double>(own_); }

  void add(const Piece& piece, const State& state, bool columnwise) {
    nc_tensor tensor = tensor_of(piece.matrix);
    // Where the matrix's first element would lie.
    const auto first = [&]<class Type>(const DeviceArray<Type>& all) {
      const auto own = reinterpret_cast<uintptr_t>(all.get() + own_);
      return reinterpret_cast<void*>(own - static_cast<uintptr_t>(piece.begin) * sizeof(Type));
    };
    tensor.value = first(state.master);
    tensor.state[0] = first(state.exp_avg);
    tensor.state[1] = first(state.exp_avg_sq);
    const double part = static_cast<double>(piece.end - piece.begin) /
                        static_cast<double>(piece.matrix.rows * piece.matrix.columns);
    for (int b = 0; b < (columnwise ? NC_BUFFER_COUNT : NC_COLUMNWISE_DATA); ++b) {
      const int64_t bytes = bytes_of(format_, piece.matrix, b);
      written_ += part * static_cast<double>(bytes);
      tensor.buffer[b] = buffers_.emplace_back(static_cast<size_t>(bytes)).get();
    }
    set_shard(tensor, machine_, piece.begin, piece.end, nullptr);
    shards_.push_back(tensor);
    // A learning rate of 0 keeps the masters; constant gradients bring the moments to rest.
    steps_.push_back(adamw_step({0, 0.9, 0.95, 1e-8, 0.1, true}, 1000));
    steps_.back().grad = first(state.grad);
    steps_.back().grad_dtype = NC_BF16;
    own_ += piece.end - piece.begin;
  }

  const char* run(nc_function function, std::vector<nc_tensor>& of, const nc_step* steps,
                  cudaStream_t stream) const {
    nc_launch launch = launch_of(machine_, of.data(), std::ssize(of), steps, amaxes_->get());
    launch.host_tables = true;
    launch.exchange = exchange_->get();
    launch.stream = stream;
    return of.empty() ? nullptr : function(&launch);
  }

  const nc_format& format_;
  const nc_machine& machine_;
  std::vector<DeviceArray<uint8_t>> buffers_;
  std::vector<nc_tensor> shards_, ends_;
  std::vector<nc_step> steps_, end_steps_;
  std::unique_ptr<DeviceArray<nc_seams>> seams_;
  std::unique_ptr<DeviceArray<nc_history>> histories_;
  std::unique_ptr<DeviceArray<float>> amaxes_, exchange_;
  int64_t slots_ = 0, own_ = 0;
  double written_ = 0;
};

int64_t elements_of_owner() {
  int64_t elements = 0;
  for (const Piece& piece : pieces_of()) elements += piece.end - piece.begin;
  return elements;
}

class Bench {
 public:
  Bench() : share_(elements_of_owner()), state_(static_cast<size_t>(share_)) {
    check(cudaStreamCreate(&stream_), "stream");
    rate_ = copy_.rate(stream_);
    std::printf("copy %.0f GB/s (read plus written); %.0fM of %.0fM parameters\n", rate_ / 1e9,
                static_cast<double>(share_) / 1e6, static_cast<double>(elements_of_layers()) / 1e6);
    std::printf("%-24s %9s %17s %8s %8s %8s %8s %10s %12s %9s\n", "flat shards", "ms", "10 to 90 %",
                "B/param", "of copy", "as many", "kernels", "B reduced", "times fewer", "anywhere");
  }

  void run(const nc_plugin& plugin) {
    Owner owner(plugin, state_);
    const nc_format& format = *plugin.format;
    report(format.name, owner.cast_bytes(),
           [&](cudaStream_t stream) { return owner.cast(stream); });
    report_reduced(format);
    report(std::string(format.name) + ": step", owner.step_bytes(),
           [&](cudaStream_t stream) { return owner.step(stream); });
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  void report(const std::string& name, double bytes_per_parameter, const Work& work) {
    const Time time = measure(stream_, work);
    const double bytes = bytes_per_parameter * static_cast<double>(share_);
    const Time copy = measure(stream_, [&](cudaStream_t stream) {
      return copy_.run(stream, 0, static_cast<size_t>(bytes / 2));
    });
    std::printf("%-24s %9.3f %8.3f %8.3f %8.2f %7.1f%% %7.1f%% %8d", name.c_str(), time.median,
                time.low, time.high, bytes_per_parameter, 100 * bytes / time.median * 1e3 / rate_,
                100 * copy.median / time.median, kernels_of(stream_, work));
  }

  static void report_reduced(const nc_format& format) {
    const auto all = static_cast<double>(block_bytes(format));
    const int64_t reduced = reduced_bytes(format);
    const auto fewer = [&](double bytes) { return bytes == 0 ? 0.0 : all / bytes; };
    std::printf(" %10lld %12.0f %9.0f\n", static_cast<long long>(reduced),
                fewer(static_cast<double>(reduced)), fewer(reduced_bytes_anywhere(format)));
  }

  int64_t share_;
  State state_;
  cudaStream_t stream_ = nullptr;
  const Copy copy_;
  double rate_ = 0;
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
