#include "bindings/flat/shards.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <limits>

#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

bool writes_columnwise(const Buffers& bytes) {
  return !bytes.facts().columnwise_derived && bytes.has(1);
}

// The tensors that launches write, null where there is none.
std::array<const at::Tensor*, NC_BUFFER_COUNT + 2> written(const Buffers& bytes) {
  const auto pointer = [](const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; };
  std::array<const at::Tensor*, NC_BUFFER_COUNT + 2> tensors{};
  const int buffers = writes_columnwise(bytes) ? NC_BUFFER_COUNT : NC_COLUMNWISE_DATA;
  for (int i = 0; i < buffers; ++i) tensors[i] = pointer(bytes.buffers[i]);
  tensors[NC_BUFFER_COUNT] = pointer(bytes.amax);
  tensors[NC_BUFFER_COUNT + 1] = pointer(bytes.history);
  return tensors;
}

// What a whole matrix's owners share, by the rows and elements of those that begin at `first_row`.
nc_seams seen_from(int64_t first_row, int64_t columns, nc_seams seams) {
  for (nc_seam& seam : seams.blocks) {
    if (seam.block_rows > 0) seam.row -= first_row / seam.block_rows;
  }
  for (int side = 0; side < 2; ++side) {
    if (seams.begin[side] >= seams.end[side]) continue;
    seams.begin[side] -= first_row * columns;
    seams.end[side] -= first_row * columns;
  }
  return seams;
}

at::Tensor identity_over(const std::vector<Cuts>& of_matrices) {
  std::vector<at::Tensor> parts;
  for (const Cuts& cuts : of_matrices) {
    parts.push_back(at::full({cuts.amaxes()}, 0, at::kInt));
    parts.push_back(at::full({cuts.values()}, std::numeric_limits<int32_t>::min(), at::kInt));
  }
  return at::cat(parts);
}

}  // namespace

FlatShards::FlatShards(std::vector<std::shared_ptr<Buffers>> matrices, std::vector<int64_t> begins,
                       std::vector<int64_t> ends, const std::vector<std::vector<int64_t>>& cuts,
                       int64_t first_slot, const std::vector<RowsOfWhole>& places)
    : matrices_(std::move(matrices)), begins_(std::move(begins)), ends_(std::move(ends)) {
  if (matrices_.empty()) value_error("there is no matrix to own a shard of");
  if (begins_.size() != matrices_.size() || ends_.size() != matrices_.size() ||
      cuts.size() != matrices_.size() || (!places.empty() && places.size() != matrices_.size()))
    value_error("shards of ", matrices_.size(), " matrices need as many begins, ends and cuts");
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Buffers& bytes = *matrices_[i];
    const auto [first_row, rows] = places.empty() ? RowsOfWhole{0, bytes.rows} : places[i];
    cuts_.emplace_back(bytes.facts(), Extent{rows, bytes.columns}, writes_columnwise(bytes),
                       cuts[i], first_slot);
    first_slot += cuts_.back().amaxes() + cuts_.back().values();
    ahead_.push_back(first_row * bytes.columns);
    seams_.push_back(seen_from(first_row, bytes.columns, cuts_.back().seams(begins_[i], ends_[i])));
    std::ranges::transform(written(bytes), memory_.emplace_back().begin(),
                           [](const at::Tensor* tensor) {
                             return tensor ? std::optional(Place(*tensor)) : std::nullopt;
                           });
    begins_[i] -= ahead_.back();
    ends_[i] -= ahead_.back();
    if (begins_[i] < 0 || ends_[i] < begins_[i] || ends_[i] > bytes.rows * bytes.columns)
      value_error("matrix ", i, " has rows ", first_row, " to ", first_row + bytes.rows,
                  " of the whole one, and not all elements of its shard");
  }
  seams_in_memory_ = seams_.data();
  if (device().is_cpu()) return;
  seams_copy_ = copied_to(device(), seams_.data(), seams_.size() * sizeof(nc_seams));
  seams_in_memory_ = static_cast<const nc_seams*>(seams_copy_.const_data_ptr());
}

at::Tensor FlatShards::identity() const { return identity_over(cuts_); }

at::Tensor FlatShards::identity_of(const std::vector<std::pair<int64_t, int64_t>>& shapes,
                                   const std::vector<std::vector<int64_t>>& cuts) const {
  if (shapes.size() != matrices_.size() || cuts.size() != matrices_.size())
    value_error("shards of ", matrices_.size(), " matrices need as many shapes and cuts");
  std::vector<Cuts> others;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const auto [rows, columns] = shapes[i];
    others.emplace_back(matrices_[i]->facts(), Extent{rows, columns},
                        writes_columnwise(*matrices_[i]), cuts[i], /*first_slot=*/0);
  }
  return identity_over(others);
}

nc_tensor FlatShards::entry(size_t i) const {
  nc_tensor entry = matrices_[i]->entry();
  if (!writes_columnwise(*matrices_[i]))
    entry.buffer[NC_COLUMNWISE_DATA] = entry.buffer[NC_COLUMNWISE_SCALE] = nullptr;
  set_shard(entry, machine(), begins_[i], ends_[i], seams_in_memory_ + i);
  entry.first = static_cast<uint64_t>(ahead_[i]);
  return entry;
}

std::vector<nc_tensor> FlatShards::ends(size_t i, const nc_tensor& entry, bool bytes_alone) const {
  const Cuts& cuts = cuts_[i];
  return shard_ends(entry, machine(), [&](int64_t cut) {
    return bytes_alone ? cuts.divides_bytes(ahead_[i] + cut) : cuts.divides(ahead_[i] + cut);
  });
}

bool FlatShards::is_of(const Memory& memory, const Buffers& bytes) {
  return std::ranges::equal(memory, written(bytes),
                            [](const std::optional<Place>& place, const at::Tensor* tensor) {
                              if (!place || !tensor) return !place && !tensor;
                              return is_plain(*tensor) && place->is_of(*tensor);
                            });
}

bool FlatShards::are_of(const std::vector<std::shared_ptr<Buffers>>& now) const {
  return std::ranges::equal(
      memory_, now, [](const Memory& memory, const auto& bytes) { return is_of(memory, *bytes); });
}

void bind_flat_shards(py::module_& module) {
  py::class_<FlatShards, std::shared_ptr<FlatShards>>(
      module, "FlatShards",
      "The flat shards that a rank owns of matrices of one format on one device: elements "
      "begins[i] to ends[i] of matrix i, row by row. cuts[i]: where the shards of all ranks begin. "
      "first_slot: of the exchange, which lists slots of matrix after matrix. places[i], if there "
      "are any: matrix i has some rows of a whole one alone: the first, a multiple of the row "
      "step, and how many rows the whole has; begins, ends and cuts are the whole one's.")
      .def(py::init<std::vector<std::shared_ptr<Buffers>>, std::vector<int64_t>,
                    std::vector<int64_t>, const std::vector<std::vector<int64_t>>&, int64_t,
                    const std::vector<RowsOfWhole>&>(),
           py::arg("matrices"), py::arg("begins"), py::arg("ends"), py::arg("cuts"),
           py::arg("first_slot"), py::arg("places") = std::vector<RowsOfWhole>())
      .def("identity", &FlatShards::identity,
           "int32 [slots] on the CPU: those of a rank that has nothing to say, amaxes of blocks "
           "and values of elements that a cut divides.")
      .def("identity_of", &FlatShards::identity_of, py::arg("shapes"), py::arg("cuts"),
           "Those that matrices of other rows and columns would have: shapes[i] and cuts[i] are of "
           "a whole one.")
      .def("are_of", &FlatShards::are_of, py::arg("matrices"),
           "Whether these matrices have their memory where the shards' launches write.");
}

}  // namespace narrowcast
