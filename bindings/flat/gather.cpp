// The packed gather of flat shards: of matrices of any formats, on one device, the bytes that each
// rank owns. Tables are made once, so that a step copies nothing to the machine but the bytes.
#include <algorithm>

#include "bindings/core/changes.hpp"
#include "bindings/core/module.hpp"
#include "bindings/flat/shards.hpp"

namespace narrowcast {
namespace {

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
  void run(const char* what, void* payload, bool unpack, int64_t moved) const {
    if (transfer_.tiles == 0) return;
    FlatTransfer transfer = transfer_;
    transfer.payload = static_cast<uint8_t*>(payload);
    transfer.unpack = unpack;
    transfer.moved = moved;
    call(device_.is_cpu() ? cpu_flat_transfer() : cuda_flat_transfer(), what, transfer, device_);
  }

 private:
  FlatTable table_;  // of the CPU; a GPU has copies
  at::Device device_;
  at::Tensor pieces_, places_;
  FlatTransfer transfer_{};
};

// Matrices with their buffers, without columnwise ones that follow from rowwise ones. ValueError if
// FSDP2 has freed one.
std::vector<FlatMatrix> flat_matrices(const Matrices& matrices) {
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

class FlatGather {
 public:
  // `rank`: this one; none where the matrices have nothing yet, and all is brought. Payloads have
  // `least_bytes`, a multiple of 256, or more if they need them.
  FlatGather(const Matrices& matrices, const FlatRanges& ranges, std::optional<size_t> rank,
             int64_t least_bytes)
      : FlatGather(matrices, whole(matrices), ranges, rank, least_bytes) {
    const FlatTable table = payloads_.unpacking(rank.value_or(ranges.size()));
    unpacking_.emplace(table, device());
  }
  // Of matrices that have some rows of the whole ones alone: they can only be packed.
  FlatGather(Matrices parts, const std::vector<RowsOfWhole>& places, const FlatRanges& ranges,
             std::optional<size_t> rank, int64_t least_bytes)
      : matrices_(checked(std::move(parts), places, ranges)),
        ranks_(std::ssize(ranges)),
        entries_(flat_matrices(matrices_)),
        payloads_(with_all_rows(entries_, places), ranges, least_bytes),
        packing_(rank ? payloads_.packing(*rank, entries_, first_rows(places), ranges.at(*rank))
                      : FlatTable(),
                 device()) {}

  // Of each rank.
  int64_t payload_bytes() const { return payloads_.bytes(); }

  // One launch each. This rank's own part, which is there already, and padding stay as they are.
  void pack(const at::Tensor& payload) const {
    packing_.run("packing flat shards", checked_payload(payload, payload_bytes()), false, moved());
  }
  void unpack(const at::Tensor& payloads) const {
    note_write();
    unpacking_.value().run("unpacking flat shards",
                           checked_payload(payloads, ranks_ * payload_bytes()), true, moved());
  }

  // Whether these are the matrices, with their buffers where they lay. Columnwise ones that follow
  // from rowwise ones may come and go.
  bool is_of(const Matrices& matrices) const {
    const auto lies_nowhere = [](const auto& one) { return !one->is_plain || one->is_freed(); };
    if (std::ranges::any_of(matrices, lies_nowhere)) return false;
    return std::ranges::equal(flat_matrices(matrices), entries_, [](const auto& one, auto& other) {
      return one.format == other.format && one.matrix == other.matrix && one.buffer == other.buffer;
    });
  }

 private:
  at::Device device() const { return matrices_[0]->device; }

  static std::vector<RowsOfWhole> whole(const Matrices& matrices) {
    std::vector<RowsOfWhole> places;
    for (const auto& one : matrices) places.emplace_back(0, one->rows, 0);
    return places;
  }

  // As large as the whole matrices; of their buffers only whether they are there is read.
  static std::vector<FlatMatrix> with_all_rows(std::vector<FlatMatrix> matrices,
                                               const std::vector<RowsOfWhole>& places) {
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].matrix.rows = std::get<1>(places[i]);
    return matrices;
  }

  static std::vector<int64_t> first_rows(const std::vector<RowsOfWhole>& places) {
    std::vector<int64_t> rows;
    rows.reserve(places.size());
    for (const RowsOfWhole& place : places) rows.push_back(std::get<0>(place));
    return rows;
  }

  void* checked_payload(const at::Tensor& tensor, int64_t bytes) const {
    return checked_address(tensor, at::kByte, bytes, device(), "the payload of flat shards");
  }

  // By how many bytes the buffers have moved, all of them together, as those do that FSDP2 frees
  // and makes room for again. ValueError if they have in another way.
  int64_t moved() const {
    std::optional<int64_t> distance;
    const std::vector<FlatMatrix> now = flat_matrices(matrices_);
    for (size_t i = 0; i < now.size(); ++i) {
      for (size_t b = 0; b < NC_BUFFER_COUNT; ++b) {
        const uint8_t *here = now[i].buffer[b], *then = entries_[i].buffer[b];
        if (then == nullptr) continue;
        const auto by = static_cast<int64_t>(reinterpret_cast<uintptr_t>(here) -
                                             reinterpret_cast<uintptr_t>(then));
        if (by != distance.value_or(by))
          value_error(
              "the buffers of a matrix have moved since this gather was made: make another");
        distance = by;
      }
    }
    return distance.value_or(0);
  }

  Matrices matrices_;
  int64_t ranks_;
  std::vector<FlatMatrix> entries_;
  FlatPayloads payloads_;
  MachineTable packing_;
  std::optional<MachineTable> unpacking_;
};

}  // namespace

void bind_flat_gather(py::module_& module) {
  py::class_<FlatGather>(
      module, "FlatGather",
      "What ranks own of matrices, of any formats and on one device, as one payload of each.")
      .def(py::init<Matrices, const FlatRanges&, std::optional<size_t>, int64_t>(),
           py::arg("matrices"), py::arg("ranges"), py::arg("rank"), py::arg("least_bytes") = 0)
      .def(py::init<Matrices, const std::vector<RowsOfWhole>&, const FlatRanges&,
                    std::optional<size_t>, int64_t>(),
           py::arg("parts"), py::arg("places"), py::arg("ranges"), py::arg("rank"),
           py::arg("least_bytes") = 0)
      .def_property_readonly("payload_bytes", &FlatGather::payload_bytes)
      .def("is_of", &FlatGather::is_of, py::arg("matrices"))
      .def("pack", &FlatGather::pack, py::arg("payload"))
      .def("unpack", &FlatGather::unpack, py::arg("payloads"));
}

}  // namespace narrowcast
