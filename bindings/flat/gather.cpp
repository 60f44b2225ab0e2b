// The packed gather of flat shards: of matrices of any formats, on one device, the bytes that each
// rank owns. Tables are made once, so that a step copies nothing to the machine but the bytes.
#include <algorithm>

#include "bindings/core/changes.hpp"
#include "bindings/core/module.hpp"
#include "bindings/flat/table.hpp"

namespace narrowcast {
namespace {

class FlatGather {
 public:
  // `rank`: this one; none where the matrices have nothing yet, and all is brought. Payloads have
  // `least_bytes`, or more if they need them.
  FlatGather(std::vector<std::shared_ptr<Buffers>> matrices, const FlatRanges& ranges,
             std::optional<int64_t> rank, int64_t least_bytes)
      : matrices_(checked(std::move(matrices))),
        ranks_(checked(ranges, rank)),
        entries_(flat_matrices(matrices_)),
        payloads_(entries_, ranges, least_bytes),
        packing_(rank ? payloads_.packing(static_cast<size_t>(*rank)) : FlatTable(), device()),
        unpacking_(payloads_.unpacking(rank ? static_cast<size_t>(*rank) : ranges.size()),
                   device()) {}

  int64_t payload_bytes() const { return payloads_.bytes(); }

  void pack(const at::Tensor& payload) const {
    packing_.run("packing flat shards",
                 payload_address(payload, payload_bytes(), device(), "the payload"), false,
                 moved());
  }
  void unpack(const at::Tensor& payloads) const {
    note_write();
    unpacking_.run(
        "unpacking flat shards",
        payload_address(payloads, ranks_ * payload_bytes(), device(), "the payloads of all ranks"),
        true, moved());
  }

  // Whether these are the matrices, with their buffers where they lay. Columnwise ones that follow
  // from rowwise ones may come and go.
  bool is_of(const std::vector<std::shared_ptr<Buffers>>& matrices) const {
    const auto lies_nowhere = [](const auto& one) { return !one->is_plain || one->is_freed(); };
    if (std::ranges::any_of(matrices, lies_nowhere)) return false;
    const std::vector<FlatMatrix> now = flat_matrices(matrices);
    return std::ranges::equal(now, entries_, [](const FlatMatrix& one, const FlatMatrix& other) {
      return one.format == other.format && one.matrix == other.matrix && one.buffer == other.buffer;
    });
  }

 private:
  at::Device device() const { return matrices_[0]->device; }

  static std::vector<std::shared_ptr<Buffers>> checked(
      std::vector<std::shared_ptr<Buffers>> matrices) {
    if (matrices.empty()) value_error("there is no matrix to gather");
    const at::Device device = matrices[0]->device;
    if (!device.is_cpu() && cuda_flat_transfer() == nullptr)
      not_implemented("flat shards on ", device.str(), " cannot be gathered: narrowcast was built ",
                      "for the CPU alone");
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Buffers& one = *matrices[i];
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
  int64_t checked(const FlatRanges& ranges, std::optional<int64_t> rank) const {
    const int64_t ranks = std::ssize(ranges);
    if (rank && (*rank < 0 || *rank >= ranks))
      value_error("rank ", *rank, " is none of the ", ranks, " whose ranges are given");
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

  std::vector<std::shared_ptr<Buffers>> matrices_;
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
      "one behind the last. rank: this one; None: unpacking brings what all ranks own. "
      "least_bytes: "
      "of a payload, a multiple of 256.")
      .def(py::init<std::vector<std::shared_ptr<Buffers>>, const FlatRanges&,
                    std::optional<int64_t>, int64_t>(),
           py::arg("matrices"), py::arg("ranges"), py::arg("rank"), py::arg("least_bytes") = 0)
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
