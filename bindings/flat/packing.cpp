// What a rank sends of matrices of which it has its own rows alone, and those that share their
// first and last blocks.
#include "bindings/core/module.hpp"
#include "bindings/flat/shards.hpp"
#include "bindings/flat/table.hpp"

namespace narrowcast {
namespace {

class FlatPacking {
 public:
  FlatPacking(std::vector<std::shared_ptr<Buffers>> parts, const std::vector<RowsOfWhole>& places,
              const FlatRanges& ranges, size_t rank)
      : parts_(std::move(parts)),
        payloads_(wholes(parts_, places), ranges),
        table_(payloads_.packing(rank, flat_matrices(parts_), first_rows(places), ranges.at(rank)),
               parts_.at(0)->device) {}

  int64_t payload_bytes() const { return payloads_.bytes(); }

  void pack(const at::Tensor& payload) const {
    table_.run("packing flat shards",
               payload_address(payload, payload_bytes(), parts_[0]->device, "the payload"), false);
  }

 private:
  // As large as the whole matrices; of their buffers only whether they are there is read.
  static std::vector<FlatMatrix> wholes(const std::vector<std::shared_ptr<Buffers>>& parts,
                                        const std::vector<RowsOfWhole>& places) {
    if (parts.empty() || parts.size() != places.size())
      value_error(parts.size(), " matrices and ", places.size(), " places");
    std::vector<FlatMatrix> matrices = flat_matrices(parts);
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].matrix.rows = places[i].second;
    return matrices;
  }

  static std::vector<int64_t> first_rows(const std::vector<RowsOfWhole>& places) {
    std::vector<int64_t> rows;
    rows.reserve(places.size());
    for (const auto& [first, all] : places) rows.push_back(first);
    return rows;
  }

  std::vector<std::shared_ptr<Buffers>> parts_;
  FlatPayloads payloads_;
  MachineTable table_;
};

}  // namespace

void bind_flat_packing(py::module_& module) {
  py::class_<FlatPacking>(
      module, "FlatPacking",
      "What a rank sends, for FlatGather to unpack, of matrices of which it has some rows alone. "
      "places, ranges: as in FlatShards and FlatGather, of the whole matrices.")
      .def(py::init<std::vector<std::shared_ptr<Buffers>>, const std::vector<RowsOfWhole>&,
                    const FlatRanges&, size_t>(),
           py::arg("parts"), py::arg("places"), py::arg("ranges"), py::arg("rank"))
      .def_property_readonly("payload_bytes", &FlatPacking::payload_bytes)
      .def("pack", &FlatPacking::pack, py::arg("payload"),
           "One launch: this rank\'s bytes to uint8 [payload_bytes].");
}

}  // namespace narrowcast
