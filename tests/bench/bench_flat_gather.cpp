// The packed gather of flat shards on this machine's GPU, as shares of the same run's copy
// bandwidth: what one of eight owners of all layers' weights packs, and what it unpacks of the
// other seven. The all-gather between them is the network's.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "runtime/gather/flat_payloads.hpp"
#include "tests/bench/flat_layers.hpp"
#include "tests/bench/gpu_program.hpp"
#include "tests/bench/gpu_timing.hpp"
#include "tests/support/quantized.hpp"

namespace narrowcast::test {
namespace {

// A table in the GPU's memory.
class Launch {
 public:
  Launch(const FlatTable& table, uint8_t* payload, bool unpack)
      : pieces_(table.pieces), piece_of_tile_(table.piece_of_tile) {
    transfer_.pieces = pieces_.get();
    transfer_.piece_of_tile = piece_of_tile_.get();
    transfer_.tiles = table.tiles();
    transfer_.payload = payload;
    transfer_.unpack = unpack;
  }
  const char* operator()(cudaStream_t stream) const {
    FlatTransfer transfer = transfer_;
    transfer.stream = stream;
    return cuda_flat_transfer()(&transfer);
  }

 private:
  DeviceArray<FlatPiece> pieces_;
  DeviceArray<int32_t> piece_of_tile_;
  FlatTransfer transfer_{};
};

class Bench {
 public:
  Bench() {
    check(cudaStreamCreate(&stream_), "stream");
    copy_ = Copy().rate(stream_);
    std::printf("copy %.0f GB/s (read plus written); owner %lld of %lld, %.0fM parameters\n",
                copy_ / 1e9, static_cast<long long>(kOwner), static_cast<long long>(kOwners),
                static_cast<double>(elements_of_layers()) / 1e6);
    std::printf("%-24s %-8s %9s %17s %9s %8s %8s\n", "flat gather", "", "ms", "10 to 90 %", "MB",
                "of copy", "kernels");
  }

  void run(const nc_plugin& plugin) const {
    const nc_format& format = *plugin.format;
    std::vector<DeviceArray<uint8_t>> buffers;
    std::vector<FlatMatrix> matrices;
    for (const Extent matrix : all_layers()) {
      FlatMatrix& one = matrices.emplace_back(FlatMatrix{&format, matrix, {}});
      for (int b = 0; b < (format.columnwise_derived ? NC_COLUMNWISE_DATA : NC_BUFFER_COUNT); ++b) {
        const auto bytes = static_cast<size_t>(bytes_of(format, matrix, b));
        one.buffer[static_cast<size_t>(b)] = buffers.emplace_back(bytes).get();
      }
    }
    FlatRanges ranges;
    for (int64_t owner = 0; owner < kOwners; ++owner) {
      auto& of_owner = ranges.emplace_back();
      for (const Piece& piece : pieces_of(owner)) of_owner.emplace_back(piece.begin, piece.end);
    }
    const FlatPayloads layout(matrices, ranges);
    const DeviceArray<uint8_t> payloads(static_cast<size_t>(kOwners * layout.bytes()));
    int64_t others = 0;
    for (size_t owner = 0; owner < kOwners; ++owner)
      others += owner == kOwner ? 0 : layout.used(owner);
    const Launch pack(layout.packing(kOwner), payloads.get() + kOwner * layout.bytes(), false);
    const Launch unpack(layout.unpacking(kOwner), payloads.get(), true);
    report(format.name, "pack", layout.used(kOwner), pack);
    report(format.name, "unpack", others, unpack);
  }

 private:
  void report(const char* name, const char* what, int64_t bytes, const Launch& launch) const {
    const Work work = [&](cudaStream_t stream) { return launch(stream); };
    const Time time = measure(stream_, work);
    const double rate = 2 * static_cast<double>(bytes) / time.median * 1e3;
    std::printf("%-24s %-8s %9.3f %8.3f %8.3f %9.1f %7.1f%% %8d\n", name, what, time.median,
                time.low, time.high, static_cast<double>(bytes) / 1e6, 100 * rate / copy_,
                kernels_of(stream_, work));
    std::fflush(stdout);
  }

  cudaStream_t stream_ = nullptr;
  double copy_ = 0;
};

}  // namespace
}  // namespace narrowcast::test

int main(int argc, char** argv) {
  using namespace narrowcast::test;
  return gpu_program("bench_flat_gather", argc, argv,
                     [](const std::vector<const nc_plugin*>& plugins) {
                       const Bench bench;
                       for (const nc_plugin* plugin : plugins) bench.run(*plugin);
                     });
}
