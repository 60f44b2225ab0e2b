#include "bindings/flat/shards.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <limits>

#include "bindings/core/changes.hpp"
#include "bindings/core/module.hpp"

namespace narrowcast {
namespace {

bool writes_columnwise(const Buffers& bytes) {
  return !bytes.facts().columnwise_derived && bytes.has(1);
}

// Where launches write, as it lies now.
nc_tensor written(const Buffers& bytes) {
  nc_tensor entry = bytes.entry();
  if (!writes_columnwise(bytes))
    entry.buffer[NC_COLUMNWISE_DATA] = entry.buffer[NC_COLUMNWISE_SCALE] = nullptr;
  return entry;
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

void check_covered(const FlatRanges& ranges, size_t place, int64_t elements) {
  std::vector<std::pair<int64_t, int64_t>> owned;
  for (const auto& of_rank : ranges) {
    const auto& [begin, end] = of_rank.at(place);
    if (begin < end) owned.emplace_back(begin, end);
  }
  std::ranges::sort(owned);
  owned.emplace_back(elements, elements);
  int64_t at = 0;
  for (const auto& [begin, end] : owned) {
    if (begin != at || end > elements)
      value_error("the ranks' shards of weight ", place, " are not its ", elements, " elements, ",
                  "each once: the one from ", begin, " to ", end, " comes where ", at, " is due");
    at = end;
  }
}

// int32 [slots] on the CPU: those of a rank that has nothing to say, of whole matrices of other
// shapes. cuts[i]: where the shards of all ranks begin.
at::Tensor identity(const Matrices& like, const std::vector<std::pair<int64_t, int64_t>>& shapes,
                    const std::vector<std::vector<int64_t>>& cuts) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < like.size(); ++i) {
    const auto [rows, columns] = shapes.at(i);
    const Cuts slots(like[i]->facts(), Extent{rows, columns}, writes_columnwise(*like[i]),
                     cuts.at(i), /*first_slot=*/0);
    parts.push_back(at::full({slots.amaxes()}, 0, at::kInt));
    parts.push_back(at::full({slots.values()}, std::numeric_limits<int32_t>::min(), at::kInt));
  }
  return at::cat(parts);
}

}  // namespace

Matrices checked(Matrices matrices, const std::vector<RowsOfWhole>& places,
                 const FlatRanges& ranges) {
  if (matrices.empty()) value_error("there is no matrix to own a shard of");
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Buffers& one = *matrices[i];
    if (one.device != matrices[0]->device)
      value_error("weight ", i, " is on ", one.device.str(), ", and weight 0 on ",
                  matrices[0]->device.str(), ": hand in those of each device by themselves");
    if (!one.is_plain) value_error("weight ", i, " has no bytes of its own in memory");
    check_covered(ranges, i, std::get<1>(places.at(i)) * one.columns);
  }
  return matrices;
}

FlatShards::FlatShards(Matrices matrices, const std::vector<RowsOfWhole>& places,
                       const std::vector<std::pair<int64_t, int64_t>>& own,
                       const FlatRanges& ranges, int64_t first_slot)
    : matrices_(checked(std::move(matrices), places, ranges)),
      all_(machine(), device()),
      at_ends_(machine(), device()),
      at_bytes_(machine(), device()) {
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Buffers& bytes = *matrices_[i];
    const auto [first_row, rows, origin] = places[i];
    const auto [begin, end] = own.at(i);
    std::vector<int64_t> cuts;
    for (const auto& of_rank : ranges) cuts.push_back(of_rank[i].first);
    cuts_.emplace_back(bytes.facts(), Extent{rows, bytes.columns}, writes_columnwise(bytes), cuts,
                       first_slot);
    first_slot += cuts_.back().amaxes() + cuts_.back().values();
    seams_.push_back(seen_from(first_row, bytes.columns, cuts_.back().seams(begin, end)));
    written_.push_back(written(bytes));
    ahead_.push_back(first_row * bytes.columns);
    origins_.push_back(origin);
    begins_.push_back(begin - ahead_[i]);
    ends_.push_back(end - ahead_[i]);
    if (begins_[i] < 0 || ends_[i] < begins_[i] || ends_[i] > bytes.rows * bytes.columns)
      value_error("weight ", i, " has rows ", first_row, " to ", first_row + bytes.rows,
                  " of the whole one, and not all elements of its shard");
  }
  seams_in_memory_ = seams_.data();
  if (device().is_cpu()) return;
  seams_copy_ = copied_to(device(), seams_.data(), seams_.size() * sizeof(nc_seams));
  seams_in_memory_ = static_cast<const nc_seams*>(seams_copy_.const_data_ptr());
}

nc_tensor FlatShards::entry(size_t i) const {
  nc_tensor entry = written(*matrices_[i]);
  set_shard(entry, machine(), begins_[i], ends_[i], seams_in_memory_ + i);
  entry.first = static_cast<uint64_t>(origins_[i] + ahead_[i]);
  return entry;
}

std::vector<nc_tensor> FlatShards::ends(size_t i, const nc_tensor& entry, bool bytes_alone) const {
  const Cuts& cuts = cuts_[i];
  return shard_ends(entry, machine(), [&](int64_t cut) {
    return bytes_alone ? cuts.divides_bytes(ahead_[i] + cut) : cuts.divides(ahead_[i] + cut);
  });
}

bool FlatShards::are_of(const Matrices& now) const {
  return std::ranges::equal(written_, now, [](const nc_tensor& then, const auto& bytes) {
    if (!bytes->is_plain || bytes->is_freed()) return false;
    const nc_tensor here = written(*bytes);
    return std::ranges::equal(then.buffer, here.buffer) && then.amax == here.amax &&
           then.history == here.history;
  });
}

void FlatShards::collect(const std::vector<OptionalTensor>& values, const OptionalTensor& amaxes,
                         const at::Tensor& exchange, bool source_bf16,
                         const std::optional<std::vector<RandomKey>>& draws) {
  constexpr const char* kWhat = "the master shard";
  std::vector<nc_tensor> all, ends, bytes;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    nc_tensor& row = all.emplace_back(entry(i));
    if (draws) std::tie(row.seed, row.step, std::ignore) = draws->at(i);
    if (elements(i) > 0) {
      const at::Tensor& value = values.at(i).value();
      row.value_dtype = checked_dtype(value.scalar_type(), kWhat);
      check_run(value, elements(i), device(), kWhat);
      row.value = first_of(address_of(value, kWhat), begins_[i], value.itemsize());
    }
    std::ranges::copy(this->ends(i, row, /*bytes_alone=*/false), std::back_inserter(ends));
    std::ranges::copy(this->ends(i, row, /*bytes_alone=*/true), std::back_inserter(bytes));
  }
  all_.assign(std::move(all));
  at_ends_.assign(std::move(ends));
  at_bytes_.assign(std::move(bytes));
  (spans() ? all_ : at_ends_)
      .run(machine().collect, "collecting amaxes",
           options(amaxes, exchange, source_bf16, draws.has_value()));
}

void FlatShards::finish(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
                        bool stochastic, const OptionalTensor& skips) {
  nc_launch launch = options(amaxes, exchange, source_bf16, stochastic);
  if (skips) launch.verdict = checked_floats(*skips, size(), device(), "which shards to skip");
  note_write();
  const nc_function record = machine().record_amax;
  if (record != nullptr) all_.run(record, "recording the amax", launch);
  (record == nullptr ? all_ : at_bytes_).run(machine().cast, "the cast", launch);
}

nc_launch FlatShards::options(const OptionalTensor& amaxes, const at::Tensor& exchange,
                              bool source_bf16, bool stochastic) const {
  nc_launch options{};
  if (spans()) options.amax = checked_floats(amaxes.value(), size(), device(), "the amaxes");
  options.exchange = checked_floats(exchange, exchange.numel(), device(), "the exchange");
  options.source_bf16 = source_bf16;
  options.stochastic = stochastic;
  return options;
}

void bind_flat_shards(py::module_& module) {
  module.def(
      "check_there",
      [](const at::Tensor& tensor, const std::string& what) { check_there(tensor, what); },
      py::arg("tensor"), py::arg("what"), "ValueError about `what` if its storage lacks elements.");
  module.def(
      "check_bytes",
      [](const at::Tensor& tensor, int64_t bytes, at::Device device, const std::string& what) {
        checked_address(tensor, at::kByte, bytes, device, what);
      },
      py::arg("tensor"), py::arg("bytes"), py::arg("device"), py::arg("what"),
      "ValueError or TypeError about `what` unless it has so many bytes in memory of its own.");
  py::class_<FlatShards, std::shared_ptr<FlatShards>>(
      module, "FlatShards",
      "The flat shards that a rank owns of matrices of one format on one device.")
      .def(py::init<Matrices, const std::vector<RowsOfWhole>&,
                    const std::vector<std::pair<int64_t, int64_t>>&, const FlatRanges&, int64_t>(),
           py::arg("matrices"), py::arg("places"), py::arg("own"), py::arg("ranges"),
           py::arg("first_slot"))
      .def_static("identity", &identity, py::arg("matrices"), py::arg("shapes"), py::arg("cuts"))
      .def("are_of", &FlatShards::are_of, py::arg("matrices"))
      .def("collect", &FlatShards::collect, py::arg("values"), py::arg("amaxes"),
           py::arg("exchange"), py::arg("source_bf16"), py::arg("draws"))
      .def("finish", &FlatShards::finish, py::arg("amaxes"), py::arg("exchange"),
           py::arg("source_bf16"), py::arg("stochastic"), py::arg("skips"));
}

}  // namespace narrowcast
