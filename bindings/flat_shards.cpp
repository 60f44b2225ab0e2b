#include "bindings/flat_shards.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <limits>

#include "bindings/module.hpp"

namespace narrowcast {
namespace {

bool writes_columnwise(const Bytes& bytes) {
  return !bytes.facts().columnwise_derived && bytes.has(1);
}

}  // namespace

FlatShards::FlatShards(std::vector<std::shared_ptr<Bytes>> matrices, std::vector<int64_t> begins,
                       std::vector<int64_t> ends, const std::vector<std::vector<int64_t>>& cuts,
                       int64_t first_slot)
    : matrices_(std::move(matrices)), begins_(std::move(begins)), ends_(std::move(ends)) {
  if (matrices_.empty()) value_error("there is no matrix to own a shard of");
  if (begins_.size() != matrices_.size() || ends_.size() != matrices_.size() ||
      cuts.size() != matrices_.size())
    value_error("shards of ", matrices_.size(), " matrices need as many begins, ends and cuts");
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Bytes& bytes = *matrices_[i];
    cuts_.emplace_back(bytes.facts(), Extent{bytes.rows, bytes.columns}, writes_columnwise(bytes),
                       cuts[i], first_slot);
    first_slot += cuts_.back().amaxes() + cuts_.back().values();
    seams_.push_back(cuts_.back().seams(begins_[i], ends_[i]));
  }
  seams_in_memory_ = seams_.data();
  if (device().is_cpu()) return;
  seams_copy_ = copied_to(device(), seams_.data(), seams_.size() * sizeof(nc_seams));
  seams_in_memory_ = static_cast<const nc_seams*>(seams_copy_.const_data_ptr());
}

at::Tensor FlatShards::initial() const {
  std::vector<at::Tensor> parts;
  for (const Cuts& cuts : cuts_) {
    parts.push_back(at::full({cuts.amaxes()}, 0, at::kInt));
    parts.push_back(at::full({cuts.values()}, std::numeric_limits<int32_t>::min(), at::kInt));
  }
  return at::cat(parts);
}

nc_tensor FlatShards::entry(size_t i) const {
  nc_tensor entry = matrices_[i]->entry();
  if (!writes_columnwise(*matrices_[i]))
    entry.buffer[NC_COLUMNWISE_DATA] = entry.buffer[NC_COLUMNWISE_SCALE] = nullptr;
  set_shard(entry, machine(), begins_[i], ends_[i], seams_in_memory_ + i);
  return entry;
}

std::vector<nc_tensor> FlatShards::ends(size_t i, const nc_tensor& entry, bool bytes_alone) const {
  const Cuts& cuts = cuts_[i];
  return shard_ends(entry, machine(), [&](int64_t cut) {
    return bytes_alone ? cuts.divides_bytes(cut) : cuts.divides(cut);
  });
}

bool FlatShards::are_of(const std::vector<std::shared_ptr<Bytes>>& now) const {
  const auto address = [](const OptionalTensor& tensor) {
    return tensor ? tensor->const_data_ptr() : nullptr;
  };
  const auto same = [&](const std::shared_ptr<Bytes>& one, const std::shared_ptr<Bytes>& other) {
    const int used = writes_columnwise(*one) ? NC_BUFFER_COUNT : NC_COLUMNWISE_DATA;
    return std::equal(one->buffers.begin(), one->buffers.begin() + used, other->buffers.begin(),
                      [&](const auto& a, const auto& b) { return address(a) == address(b); }) &&
           address(one->amax) == address(other->amax) &&
           address(one->history) == address(other->history);
  };
  return std::ranges::equal(matrices_, now, same);
}

void bind_flat_shards(py::module_& module) {
  py::class_<FlatShards, std::shared_ptr<FlatShards>>(
      module, "FlatShards",
      "The flat shards that a rank owns of matrices of one format on one device: elements "
      "begins[i] to ends[i] of matrix i, row by row. cuts[i]: where the shards of all ranks begin. "
      "first_slot: of the exchange, which lists slots of matrix after matrix.")
      .def(py::init<std::vector<std::shared_ptr<Bytes>>, std::vector<int64_t>, std::vector<int64_t>,
                    const std::vector<std::vector<int64_t>>&, int64_t>(),
           py::arg("matrices"), py::arg("begins"), py::arg("ends"), py::arg("cuts"),
           py::arg("first_slot"))
      .def("initial", &FlatShards::initial,
           "int32 [slots] on the CPU: those of a rank that has nothing to say, amaxes of blocks "
           "and values of elements that a cut divides.")
      .def("are_of", &FlatShards::are_of, py::arg("matrices"),
           "Whether these matrices have the buffers that the shards write.");
}

}  // namespace narrowcast
