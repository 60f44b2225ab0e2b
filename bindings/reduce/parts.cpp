// What a rank casts and adds in a reduce-scatter of gradients (fsdp/reduce_scatter.py).
#include "bindings/core/launch.hpp"
#include "bindings/core/module.hpp"
#include "bindings/core/plugin.hpp"
#include "bindings/core/tensors.hpp"
#include "runtime/reduce/part.hpp"

namespace narrowcast {
namespace {

int64_t part_bytes(const Plugin& plugin, int64_t elements) {
  const nc_layout& layout = plugin.format().rowwise;
  return PartLayout(elements, layout.element_bits, layout.block_columns, layout.scale_bytes).bytes;
}

// `values`: the parts of all ranks. `bytes`: as part_buffers makes them.
nc_parts checked_parts(const Plugin& plugin, const at::Tensor& values, const at::Tensor& bytes,
                       int64_t ranks, int64_t rank) {
  if (rank < 0 || rank >= ranks || values.numel() % ranks != 0)
    value_error(values.numel(), " elements are no equal parts of ranks, of which this is ", rank,
                " of ", ranks);
  nc_parts parts{};
  parts.elements = values.numel() / ranks;
  parts.ranks = ranks;
  parts.rank = rank;
  parts.dtype = checked_dtype(values.scalar_type(), "a gradient that is reduced");
  check_run(values, values.numel(), values.device(), "the gradients");
  parts.values = address_of(values, "the gradients");
  const int64_t size = (ranks - 1) * part_bytes(plugin, parts.elements);
  parts.bytes = static_cast<uint8_t*>(
      checked_address(bytes, at::kByte, size, values.device(), "what is sent of gradients"));
  if (reinterpret_cast<uintptr_t>(parts.bytes) % 16 != 0)
    value_error("what is sent of gradients does not begin at a multiple of 16 bytes");
  return parts;
}

// Made here, because an allocation from Python takes the host twice as long.
std::pair<at::Tensor, at::Tensor> part_buffers(const Plugin& plugin, const at::Tensor& values,
                                               int64_t ranks) {
  const std::array sizes{ranks - 1, part_bytes(plugin, values.numel() / ranks)};
  const auto options = values.options().dtype(at::kByte);
  return {at::empty(sizes, options), at::empty(sizes, options)};
}

void cast_parts(const Plugin& plugin, const at::Tensor& values, const at::Tensor& bytes,
                int64_t ranks, int64_t rank, const std::optional<RandomKey>& draw) {
  nc_parts parts = checked_parts(plugin, values, bytes, ranks, rank);
  parts.stochastic = draw.has_value();
  if (draw) std::tie(parts.seed, parts.step, parts.first) = *draw;
  call(plugin.machine(values.device()).cast_parts, "the cast of gradients", parts, values.device());
}

void add_parts(const Plugin& plugin, const at::Tensor& values, const at::Tensor& bytes,
               const at::Tensor& sum, int64_t ranks, int64_t rank, double divisor) {
  nc_parts parts = checked_parts(plugin, values, bytes, ranks, rank);
  parts.sum = checked_address(sum, values.scalar_type(), parts.elements, values.device(),
                              "the sum of gradients");
  parts.divisor = static_cast<float>(divisor);
  call(plugin.machine(values.device()).add_parts, "the sum of gradients", parts, values.device());
}

}  // namespace

void bind_parts(py::module_& module) {
  module.def("part_buffers", &part_buffers, py::arg("plugin"), py::arg("values"), py::arg("ranks"),
             "What is sent of gradients and what arrives: [ranks - 1, bytes of a part] of uint8.");
  module.def("cast_parts", &cast_parts, py::arg("plugin"), py::arg("values"), py::arg("bytes"),
             py::arg("ranks"), py::arg("rank"), py::arg("draw"));
  module.def("add_parts", &add_parts, py::arg("plugin"), py::arg("values"), py::arg("bytes"),
             py::arg("sum"), py::arg("ranks"), py::arg("rank"), py::arg("divisor"));
}

}  // namespace narrowcast
