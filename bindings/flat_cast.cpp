// Casts of flat shards: the parts that one rank owns of matrices, of one format on one device, each
// a run of elements that begins and ends anywhere.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <limits>

#include "bindings/activation.hpp"
#include "bindings/bytes.hpp"
#include "bindings/launch.hpp"
#include "bindings/module.hpp"
#include "runtime/launch/cuts.hpp"

namespace narrowcast {
namespace {

class FlatCast {
 public:
  // `begins`, `ends`: elements that are this rank's; `cuts`: where any rank's begin, of each
  // matrix; `first_slot`: of the exchange that all casts of a call share.
  FlatCast(std::vector<std::shared_ptr<Bytes>> matrices, std::vector<int64_t> begins,
           std::vector<int64_t> ends, const std::vector<std::vector<int64_t>>& cuts,
           int64_t first_slot)
      : matrices_(std::move(matrices)),
        begins_(std::move(begins)),
        ends_(std::move(ends)),
        all_(machine(), device()),
        at_ends_(machine(), device()),
        at_bytes_(machine(), device()) {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Bytes& bytes = *matrices_[i];
      cuts_.emplace_back(bytes.facts(), Extent{bytes.rows, bytes.columns}, writes_columnwise(bytes),
                         cuts[i], first_slot);
      first_slot += cuts_.back().amaxes() + cuts_.back().values();
      seams_.push_back(cuts_.back().seams(begins_[i], ends_[i]));
    }
    seams_in_memory_ = seams_.data();
    if (!device().is_cpu()) {
      seams_copy_ = copied_to(device(), seams_.data(), seams_.size() * sizeof(nc_seams));
      seams_in_memory_ = static_cast<const nc_seams*>(seams_copy_.const_data_ptr());
    }
  }

  // The slots before anybody has collected.
  at::Tensor initial() const {
    std::vector<at::Tensor> parts;
    for (const Cuts& cuts : cuts_) {
      parts.push_back(at::full({cuts.amaxes()}, 0, at::kInt));
      parts.push_back(at::full({cuts.values()}, std::numeric_limits<int32_t>::min(), at::kInt));
    }
    return at::cat(parts);
  }

  // This rank's part of what the ranks reduce. With a delayed scale also the codes.
  void collect(const std::vector<OptionalTensor>& values, const OptionalTensor& amaxes,
               const at::Tensor& exchange, bool source_bf16,
               const std::optional<std::vector<RandomKey>>& draws) {
    assign(values, draws);
    const MatrixTable& table = spans() ? all_ : at_ends_;
    table.run(machine().collect, "collecting amaxes",
              options(amaxes, exchange, source_bf16, draws.has_value()));
  }

  // What waits for the reduction. `stop`: a float in the machine's memory; if it is not 0, nothing
  // is done.
  void finish(const OptionalTensor& amaxes, const at::Tensor& exchange, const at::Tensor& stop,
              bool source_bf16, bool stochastic) {
    nc_launch launch = options(amaxes, exchange, source_bf16, stochastic);
    launch.found_inf = checked_floats(stop, 1, device(), "the flag to stop");
    const nc_function record = machine().record_amax;
    if (record != nullptr) all_.run(record, "recording the amax", launch);
    (record == nullptr ? all_ : at_bytes_).run(machine().cast, "the cast", launch);
  }

 private:
  // Where columnwise follows from rowwise, it is derived when the shards of all have come.
  static bool writes_columnwise(const Bytes& bytes) {
    return !bytes.facts().columnwise_derived && bytes.has(1);
  }

  const Bytes& first() const {
    if (matrices_.empty()) value_error("there is no matrix to cast");
    return *matrices_[0];
  }
  const nc_machine& machine() const { return first().plugin.machine(first().device); }
  at::Device device() const { return first().device; }
  bool spans() const { return first().facts().tensor_amax != 0; }

  void assign(const std::vector<OptionalTensor>& values,
              const std::optional<std::vector<RandomKey>>& draws) {
    std::vector<nc_tensor> all, ends, bytes;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      nc_tensor& entry = all.emplace_back(matrices_[i]->entry());
      if (!writes_columnwise(*matrices_[i]))
        entry.buffer[NC_COLUMNWISE_DATA] = entry.buffer[NC_COLUMNWISE_SCALE] = nullptr;
      set_shard(entry, machine(), begins_[i], ends_[i], seams_in_memory_ + i);
      if (draws) std::tie(entry.seed, entry.step, entry.first) = draws->at(i);
      if (begins_[i] < ends_[i]) add_value(entry, *values.at(i), begins_[i], ends_[i]);
      const Cuts& cuts = cuts_[i];
      std::ranges::copy(shard_ends(entry, machine(), std::bind_front(&Cuts::divides, &cuts)),
                        std::back_inserter(ends));
      std::ranges::copy(shard_ends(entry, machine(), std::bind_front(&Cuts::divides_bytes, &cuts)),
                        std::back_inserter(bytes));
    }
    all_.assign(std::move(all));
    at_ends_.assign(std::move(ends));
    at_bytes_.assign(std::move(bytes));
  }

  void add_value(nc_tensor& entry, const at::Tensor& value, int64_t begin, int64_t end) const {
    entry.value_dtype = checked_dtype(value.scalar_type(), "the master shard");
    check_run(value, end - begin, device(), "the master shard");
    const auto address = reinterpret_cast<uintptr_t>(address_of(value, "the master shard"));
    entry.value = reinterpret_cast<void*>(address - begin * value.itemsize());
  }

  nc_launch options(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
                    bool stochastic) const {
    nc_launch options{};
    if (spans())
      options.amax = checked_floats(amaxes.value(), std::ssize(matrices_), device(), "the amaxes");
    options.exchange = checked_floats(exchange, exchange.numel(), device(), "the exchange");
    options.source_bf16 = source_bf16;
    options.stochastic = stochastic;
    return options;
  }

  std::vector<std::shared_ptr<Bytes>> matrices_;
  std::vector<int64_t> begins_, ends_;
  std::vector<Cuts> cuts_;
  std::vector<nc_seams> seams_;
  at::Tensor seams_copy_;
  const nc_seams* seams_in_memory_ = nullptr;
  MatrixTable all_, at_ends_, at_bytes_;  // shards; their ends that divide blocks, and bytes
};

}  // namespace

void bind_flat_cast(py::module_& module) {
  py::class_<FlatCast>(
      module, "FlatCast",
      "The flat shards that a rank owns of matrices of one format on one device: elements "
      "begins[i] to ends[i] of matrix i, row by row. cuts[i]: where the shards of all ranks begin. "
      "first_slot: of the exchange, which lists slots of matrix after matrix.")
      .def(py::init<std::vector<std::shared_ptr<Bytes>>, std::vector<int64_t>, std::vector<int64_t>,
                    const std::vector<std::vector<int64_t>>&, int64_t>(),
           py::arg("matrices"), py::arg("begins"), py::arg("ends"), py::arg("cuts"),
           py::arg("first_slot"))
      .def(
          "initial", &FlatCast::initial,
          "int32 [slots] on the CPU: those of a rank that has nothing to say, amaxes of blocks and "
          "values of elements that a cut divides.")
      .def("collect", &FlatCast::collect, py::arg("values"), py::arg("amaxes"), py::arg("exchange"),
           py::arg("source_bf16"), py::arg("draws"),
           "Writes this rank's part of what the ranks reduce by maxima of int32: amaxes, float32 "
           "[matrices], where a scale spans the tensor, else None, and exchange, float32. values: "
           "of each shard, None of an empty one. draws: as in CastList.cast.")
      .def("finish", &FlatCast::finish, py::arg("amaxes"), py::arg("exchange"), py::arg("stop"),
           py::arg("source_bf16"), py::arg("stochastic"),
           "Makes the bytes of the shards from the reduced amaxes and slots, of the values that "
           "were collected last. stop: float32 (1,); if it is not 0, nothing is done.");
}

}  // namespace narrowcast
