// What gathers of flat shards have in common: matrices as the runtime takes them, the tables of
// their launches in the machine's memory, payloads.
#pragma once

#include <algorithm>

#include "bindings/core/buffers.hpp"
#include "bindings/core/launch.hpp"
#include "runtime/gather/flat_payloads.hpp"

namespace narrowcast {

// A table where the machine reads it.
class MachineTable {
 public:
  MachineTable(FlatTable table, at::Device device) : table_(std::move(table)), device_(device) {
    transfer_.tiles = table_.tiles();
    transfer_.pieces = table_.pieces.data();
    transfer_.piece_of_tile = table_.piece_of_tile.data();
    if (device_.is_cpu() || transfer_.tiles == 0) return;
    pieces_ = copied_to(device_, table_.pieces.data(), table_.pieces.size() * sizeof(FlatPiece));
    places_ = copied_to(device_, table_.piece_of_tile.data(),
                        table_.piece_of_tile.size() * sizeof(int32_t));
    transfer_.pieces = static_cast<const FlatPiece*>(pieces_.const_data_ptr());
    transfer_.piece_of_tile = static_cast<const int32_t*>(places_.const_data_ptr());
  }

  MachineTable(const MachineTable&) = delete;
  MachineTable& operator=(const MachineTable&) = delete;

  // `moved`: by how many bytes all buffers have, since the table was made.
  void run(const char* what, void* payload, bool unpack, int64_t moved = 0) const {
    if (transfer_.tiles == 0) return;
    const FlatTransferFunction function =
        device_.is_cpu() ? cpu_flat_transfer() : cuda_flat_transfer();
    FlatTransfer transfer = transfer_;
    transfer.payload = static_cast<uint8_t*>(payload);
    transfer.unpack = unpack;
    transfer.moved = moved;
    call(function, what, transfer, device_);
  }

 private:
  FlatTable table_;  // of the CPU; a GPU has copies
  at::Device device_;
  at::Tensor pieces_, places_;
  FlatTransfer transfer_{};
};

// Matrices with their buffers, without columnwise ones that follow from rowwise ones. ValueError if
// FSDP2 has freed one.
inline std::vector<FlatMatrix> flat_matrices(
    const std::vector<std::shared_ptr<Buffers>>& matrices) {
  std::vector<FlatMatrix> entries;
  for (const auto& one : matrices) {
    const nc_tensor entry = one->facts().columnwise_derived ? one->entry(/*only=*/0) : one->entry();
    FlatMatrix& matrix =
        entries.emplace_back(FlatMatrix{&one->facts(), {one->rows, one->columns}, {}});
    std::ranges::transform(entry.buffer, matrix.buffer.begin(),
                           [](void* buffer) { return static_cast<uint8_t*>(buffer); });
  }
  return entries;
}

// Of payloads. TypeError or ValueError unless they are that many bytes on a device.
inline void* payload_address(const at::Tensor& tensor, int64_t bytes, at::Device device,
                             const char* what) {
  if (tensor.scalar_type() != at::kByte)
    type_error(what, " is ", c10::toString(tensor.scalar_type()), ", not uint8");
  if (tensor.device() != device)
    value_error(what, " is on ", tensor.device().str(), ", the matrices on ", device.str());
  if (!tensor.is_contiguous()) value_error(what, " is not contiguous");
  if (tensor.numel() != bytes)
    value_error(what, " has ", tensor.numel(), " bytes, not the ", bytes, " of this gather");
  return address_of(tensor, what);
}

}  // namespace narrowcast
