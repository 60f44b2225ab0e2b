// The packed gather of flat shards: of matrices of any formats, on one device, the bytes that each
// rank owns. Tables are made once, so that a step copies nothing to the machine but the bytes.
#include <algorithm>

#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "runtime/gather/flat_payloads.hpp"

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

  void run(const char* what, void* payload, bool unpack) const {
    if (transfer_.tiles == 0) return;
    const FlatTransferFunction function =
        device_.is_cpu() ? cpu_flat_transfer() : cuda_flat_transfer();
    FlatTransfer transfer = transfer_;
    transfer.payload = static_cast<uint8_t*>(payload);
    transfer.unpack = unpack;
    call(function, what, transfer, device_);
  }

 private:
  FlatTable table_;  // of the CPU; a GPU has copies
  at::Device device_;
  at::Tensor pieces_, places_;
  FlatTransfer transfer_{};
};

class FlatGather {
 public:
  FlatGather(std::vector<std::shared_ptr<Bytes>> matrices, const FlatRanges& ranges, int64_t rank)
      : matrices_(checked(std::move(matrices))),
        ranks_(checked(ranges, rank)),
        entries_(entries_of(matrices_)),
        payloads_(entries_, ranges),
        packing_(payloads_.packing(static_cast<size_t>(rank)), device()),
        unpacking_(payloads_.unpacking(static_cast<size_t>(rank)), device()) {}

  int64_t payload_bytes() const { return payloads_.bytes(); }

  void pack(const at::Tensor& payload) const {
    check_current();
    packing_.run("packing flat shards", address(payload, payload_bytes(), "the payload"), false);
  }
  void unpack(const at::Tensor& payloads) const {
    check_current();
    unpacking_.run("unpacking flat shards",
                   address(payloads, ranks_ * payload_bytes(), "the payloads of all ranks"), true);
  }

  // Whether these are the matrices, with their buffers where they lay. Columnwise ones that follow
  // from rowwise ones may come and go.
  bool is_of(const std::vector<std::shared_ptr<Bytes>>& matrices) const {
    const auto lies_nowhere = [](const auto& one) { return !one->is_plain || one->is_freed(); };
    if (std::ranges::any_of(matrices, lies_nowhere)) return false;
    const std::vector<FlatMatrix> now = entries_of(matrices);
    return std::ranges::equal(now, entries_, [](const FlatMatrix& one, const FlatMatrix& other) {
      return one.format == other.format && one.matrix == other.matrix && one.buffer == other.buffer;
    });
  }

 private:
  at::Device device() const { return matrices_[0]->device; }

  static std::vector<std::shared_ptr<Bytes>> checked(std::vector<std::shared_ptr<Bytes>> matrices) {
    if (matrices.empty()) value_error("there is no matrix to gather");
    const at::Device device = matrices[0]->device;
    if (!device.is_cpu() && cuda_flat_transfer() == nullptr)
      not_implemented("flat shards on ", device.str(), " cannot be gathered: narrowcast was built ",
                      "for the CPU alone");
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Bytes& one = *matrices[i];
      if (one.device != device)
        value_error("matrix ", i, " is on ", one.device.str(), ", and matrix 0 on ", device.str(),
                    ": gather those of each device by themselves");
      if (!one.is_plain) value_error("matrix ", i, " has no bytes of its own in memory");
      if (one.facts().columnwise_derived && !one.has(0))
        value_error("matrix ", i, " has columnwise bytes alone, which follow from rowwise ones in ",
                    one.facts().name, ": it is the rowwise ones that are gathered");
    }
    return matrices;
  }

  // Returns how many ranks there are.
  int64_t checked(const FlatRanges& ranges, int64_t rank) const {
    const int64_t ranks = std::ssize(ranges);
    if (rank < 0 || rank >= ranks)
      value_error("rank ", rank, " is none of the ", ranks, " whose ranges are given");
    for (size_t from = 0; from < ranges.size(); ++from) {
      if (ranges[from].size() != matrices_.size())
        value_error("rank ", from, " has ranges of ", ranges[from].size(), " matrices, not of ",
                    matrices_.size());
    }
    for (size_t i = 0; i < matrices_.size(); ++i) check_covered(ranges, i);
    return ranks;
  }

  void check_covered(const FlatRanges& ranges, size_t place) const {
    const int64_t elements = matrices_[place]->rows * matrices_[place]->columns;
    std::vector<std::pair<int64_t, int64_t>> owned;
    for (const auto& of_rank : ranges) {
      if (of_rank[place].first < of_rank[place].second) owned.push_back(of_rank[place]);
    }
    std::ranges::sort(owned);
    owned.emplace_back(elements, elements);
    int64_t at = 0;
    for (const auto& [begin, end] : owned) {
      if (begin != at || end > elements)
        value_error("the ranges of matrix ", place, " are not its ", elements, " elements, each ",
                    "once: the one from ", begin, " to ", end, " comes where ", at, " is due");
      at = end;
    }
  }

  static std::vector<FlatMatrix> entries_of(const std::vector<std::shared_ptr<Bytes>>& matrices) {
    std::vector<FlatMatrix> entries;
    for (const auto& one : matrices) {
      const nc_tensor entry =
          one->facts().columnwise_derived ? one->entry(/*only=*/0) : one->entry();
      FlatMatrix& matrix =
          entries.emplace_back(FlatMatrix{&one->facts(), {one->rows, one->columns}, {}});
      std::ranges::transform(entry.buffer, matrix.buffer.begin(),
                             [](void* buffer) { return static_cast<uint8_t*>(buffer); });
    }
    return entries;
  }

  void check_current() const {
    if (!is_of(matrices_))
      value_error("the buffers of a matrix have moved or have been freed since this gather was ",
                  "made: make another");
  }

  void* address(const at::Tensor& tensor, int64_t bytes, const char* what) const {
    if (tensor.scalar_type() != at::kByte)
      type_error(what, " is ", c10::toString(tensor.scalar_type()), ", not uint8");
    if (tensor.device() != device())
      value_error(what, " is on ", tensor.device().str(), ", the matrices on ", device().str());
    if (!tensor.is_contiguous()) value_error(what, " is not contiguous");
    if (tensor.numel() != bytes)
      value_error(what, " has ", tensor.numel(), " bytes, not the ", bytes, " of this gather");
    return address_of(tensor, what);
  }

  std::vector<std::shared_ptr<Bytes>> matrices_;
  int64_t ranks_;
  std::vector<FlatMatrix> entries_;
  FlatPayloads payloads_;
  MachineTable packing_, unpacking_;
};

}  // namespace

void bind_flat_gather(py::module_& module) {
  py::class_<FlatGather>(
      module, "FlatGather",
      "What ranks own of matrices, of any formats and on one device, as one payload of each. "
      "ranges[r][i]: the elements of matrix i, row by row, that are rank r's, the first and the "
      "one behind the last. rank: this one.")
      .def(py::init<std::vector<std::shared_ptr<Bytes>>, const FlatRanges&, int64_t>(),
           py::arg("matrices"), py::arg("ranges"), py::arg("rank"))
      .def_property_readonly("payload_bytes", &FlatGather::payload_bytes,
                             "Of each rank: a multiple of 256.")
      .def("is_of", &FlatGather::is_of, py::arg("matrices"),
           "Whether these are its matrices, with buffers where they lay when it was made. "
           "Columnwise ones that follow from rowwise ones may come and go.")
      .def("pack", &FlatGather::pack, py::arg("payload"),
           "One launch: this rank's bytes to uint8 [payload_bytes].")
      .def("unpack", &FlatGather::unpack, py::arg("payloads"),
           "One launch: uint8 [ranks * payload_bytes] to the buffers. This rank's own part, which "
           "is there already, and padding stay as they are.");
}

}  // namespace narrowcast
