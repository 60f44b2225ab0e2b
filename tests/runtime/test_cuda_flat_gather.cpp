// The packed gather on the GPU: payloads and what ranks make of them are the CPU's, byte for byte,
// wherever in words the buffers begin.
#include <doctest/doctest.h>

#include "tests/support/cuda_memory.hpp"
#include "tests/support/flat_gathers.hpp"
#include "tests/support/plugins.hpp"

namespace narrowcast::test {
namespace {

// A rank's buffers in the GPU's memory, each so many bytes behind a multiple of 16.
class DeviceRank {
 public:
  DeviceRank(const Bucket& bucket, size_t rank, size_t shift)
      : shift_(shift), matrices_(bucket.matrices(rank)) {
    for (size_t i = 0; i < bucket.size(); ++i) {
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const std::span<const uint8_t> host = bucket.bytes(rank, i, b);
        std::vector<uint8_t> bytes(shift_, kPoison);
        bytes.insert(bytes.end(), host.begin(), host.end());
        matrices_[i].buffer[static_cast<size_t>(b)] = arrays_.emplace_back(bytes).get() + shift_;
      }
    }
  }

  const std::vector<FlatMatrix>& matrices() const { return matrices_; }

  // Empty, or where a byte is another than in the CPU's memory.
  std::string fault(const Bucket& bucket, size_t rank) const {
    size_t at = 0;
    for (size_t i = 0; i < bucket.size(); ++i) {
      for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
        const std::vector<uint8_t> here = arrays_[at++].download();
        const bool ahead = std::all_of(here.begin(), here.begin() + static_cast<int64_t>(shift_),
                                       [](uint8_t byte) { return byte == kPoison; });
        const std::span<const uint8_t> host = bucket.bytes(rank, i, b);
        if (ahead && std::equal(host.begin(), host.end(),
                                here.begin() + static_cast<int64_t>(shift_), here.end()))
          continue;
        return std::string(bucket.format(i).name) + ", rank " + std::to_string(rank) +
               ": another buffer " + std::to_string(b);
      }
    }
    return {};
  }

 private:
  size_t shift_;
  std::vector<DeviceArray<uint8_t>> arrays_;
  std::vector<FlatMatrix> matrices_;
};

void run_on_gpu(const FlatTable& table, uint8_t* payload, bool unpack) {
  const DeviceArray<FlatPiece> pieces(table.pieces);
  const DeviceArray<int32_t> piece_of_tile(table.piece_of_tile);
  FlatTransfer transfer = flat_transfer_of(table, payload, unpack);
  transfer.pieces = pieces.get();
  transfer.piece_of_tile = piece_of_tile.get();
  REQUIRE(cuda_flat_transfer()(&transfer) == nullptr);
  test::check(cudaDeviceSynchronize(), "a gather");
}

void run_on_cpu(const FlatTable& table, uint8_t* payload, bool unpack) {
  const FlatTransfer transfer = flat_transfer_of(table, payload, unpack);
  REQUIRE(cpu_flat_transfer()(&transfer) == nullptr);
}

void check_gather(const Bucket& bucket, size_t shift) {
  CAPTURE(shift);
  std::vector<DeviceRank> there;
  std::vector<uint8_t> payloads;
  for (size_t rank = 0; rank < bucket.ranks(); ++rank) {
    there.emplace_back(bucket, rank, shift);
    const FlatPayloads layout(bucket.matrices(rank), bucket.ranges());
    const auto bytes = static_cast<size_t>(layout.bytes());
    payloads.resize(bucket.ranks() * bytes, kPoison);
    run_on_cpu(layout.packing(rank), payloads.data() + rank * bytes, /*unpack=*/false);
    const DeviceArray<uint8_t> payload(std::vector<uint8_t>(bytes, kPoison));
    const FlatPayloads of_gpu(there[rank].matrices(), bucket.ranges());
    run_on_gpu(of_gpu.packing(rank), payload.get(), /*unpack=*/false);
    const std::vector<uint8_t> packed = payload.download();
    CHECK(std::equal(packed.begin(), packed.end(),
                     payloads.begin() + static_cast<int64_t>(rank * bytes)));
  }
  const DeviceArray<uint8_t> arrived(payloads);
  for (size_t rank = 0; rank < bucket.ranks(); ++rank) {
    const FlatPayloads layout(bucket.matrices(rank), bucket.ranges());
    run_on_cpu(layout.unpacking(rank), payloads.data(), /*unpack=*/true);
    const FlatPayloads of_gpu(there[rank].matrices(), bucket.ranges());
    run_on_gpu(of_gpu.unpacking(rank), arrived.get(), /*unpack=*/true);
    CHECK(there[rank].fault(bucket, rank) == "");
  }
}

TEST_CASE("packed gathers on the GPU: all formats in one bucket, small matrices") {
  if (!has_gpu()) return;
  Random random(1);
  for (const size_t owners : {1, 2, 3, 5, 8, 16}) {
    Bucket bucket;
    fill(bucket, all_plugins(), {36, 52}, owners, random);
    check_gather(bucket, 0);
  }
}

TEST_CASE("packed gathers on the GPU: long lines, many lines, and buffers anywhere") {
  if (!has_gpu()) return;
  Random random(2);
  for (const size_t shift : {0, 1, 2, 4, 7, 8, 15}) {
    for (const size_t owners : {2, 3}) {
      Bucket bucket;
      for (const Extent matrix : {Extent{37, 53}, Extent{130, 390}, Extent{304, 304},
                                  Extent{40000, 4}, Extent{4, 20004}, Extent{1030, 516}})
        fill(bucket, all_plugins(), matrix, owners, random);
      check_gather(bucket, shift);
    }
  }
}

}  // namespace
}  // namespace narrowcast::test
