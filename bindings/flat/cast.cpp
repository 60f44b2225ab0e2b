// Casts of flat shards from their masters.
#include "bindings/core/changes.hpp"
#include "bindings/core/module.hpp"
#include "bindings/flat/shards.hpp"

namespace narrowcast {
namespace {

class FlatCast {
 public:
  explicit FlatCast(std::shared_ptr<FlatShards> shards)
      : shards_(std::move(shards)),
        all_(shards_->machine(), shards_->device()),
        at_ends_(shards_->machine(), shards_->device()),
        at_bytes_(shards_->machine(), shards_->device()) {}

  // This rank's part of what the ranks reduce. With a delayed scale also the codes.
  void collect(const std::vector<OptionalTensor>& values, const OptionalTensor& amaxes,
               const at::Tensor& exchange, bool source_bf16,
               const std::optional<std::vector<RandomKey>>& draws) {
    assign(values, draws);
    const MatrixTable& table = shards_->spans() ? all_ : at_ends_;
    table.run(machine().collect, "collecting amaxes",
              options(amaxes, exchange, source_bf16, draws.has_value()));
  }

  // What waits for the reduction. `skips`: float32, one a shard, or none; where it is negative, the
  // shard is left as it is.
  void finish(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
              bool stochastic, const OptionalTensor& skips) {
    nc_launch launch = options(amaxes, exchange, source_bf16, stochastic);
    if (skips)
      launch.verdict =
          checked_floats(*skips, shards_->size(), shards_->device(), "which shards to skip");
    note_write();
    const nc_function record = machine().record_amax;
    if (record != nullptr) all_.run(record, "recording the amax", launch);
    (record == nullptr ? all_ : at_bytes_).run(machine().cast, "the cast", launch);
  }

 private:
  const nc_machine& machine() const { return shards_->machine(); }

  void assign(const std::vector<OptionalTensor>& values,
              const std::optional<std::vector<RandomKey>>& draws) {
    std::vector<nc_tensor> all, ends, bytes;
    for (int64_t i = 0; i < shards_->size(); ++i) {
      nc_tensor& entry = all.emplace_back(shards_->entry(i));
      if (draws) {
        const auto& [seed, step, first] = draws->at(i);
        entry.seed = seed;
        entry.step = step;
        entry.first += first;
      }
      if (shards_->elements(i) > 0) add_value(entry, *values.at(i), i);
      std::ranges::copy(shards_->ends(i, entry, /*bytes_alone=*/false), std::back_inserter(ends));
      std::ranges::copy(shards_->ends(i, entry, /*bytes_alone=*/true), std::back_inserter(bytes));
    }
    all_.assign(std::move(all));
    at_ends_.assign(std::move(ends));
    at_bytes_.assign(std::move(bytes));
  }

  void add_value(nc_tensor& entry, const at::Tensor& value, int64_t i) const {
    constexpr const char* kWhat = "the master shard";
    entry.value_dtype = checked_dtype(value.scalar_type(), kWhat);
    check_run(value, shards_->elements(i), shards_->device(), kWhat);
    entry.value = first_of(address_of(value, kWhat), shards_->begin(i), value.itemsize());
  }

  nc_launch options(const OptionalTensor& amaxes, const at::Tensor& exchange, bool source_bf16,
                    bool stochastic) const {
    nc_launch options{};
    const at::Device device = shards_->device();
    if (shards_->spans())
      options.amax = checked_floats(amaxes.value(), shards_->size(), device, "the amaxes");
    options.exchange = checked_floats(exchange, exchange.numel(), device, "the exchange");
    options.source_bf16 = source_bf16;
    options.stochastic = stochastic;
    return options;
  }

  std::shared_ptr<FlatShards> shards_;
  MatrixTable all_, at_ends_, at_bytes_;  // shards; their ends that divide blocks, and bytes
};

}  // namespace

void bind_flat_cast(py::module_& module) {
  py::class_<FlatCast>(module, "FlatCast", "Casts of flat shards from their masters.")
      .def(py::init<std::shared_ptr<FlatShards>>(), py::arg("shards"))
      .def("collect", &FlatCast::collect, py::arg("values"), py::arg("amaxes"), py::arg("exchange"),
           py::arg("source_bf16"), py::arg("draws"),
           "Writes this rank's part of what the ranks reduce by maxima of int32: amaxes, float32 "
           "[matrices], where a scale spans the tensor, else None, and exchange, float32. values: "
           "of each shard, None of an empty one. draws: as in CastList.cast.")
      .def("finish", &FlatCast::finish, py::arg("amaxes"), py::arg("exchange"),
           py::arg("source_bf16"), py::arg("stochastic"), py::arg("skips") = py::none(),
           "Makes the bytes of the shards from the reduced amaxes and slots, of the values that "
           "were collected last. skips: float32 [matrices] or None; where negative, the bytes "
           "of the shard stay as they are.");
}

}  // namespace narrowcast
