#include "bindings/matmul/operand.hpp"

#include <ATen/ops/full.h>

#include "bindings/core/graph_key.hpp"

namespace narrowcast {
namespace {

// The shape of the matrix whose data has this shape.
Extent matrix_of(const nc_layout& layout, at::IntArrayRef data) {
  if (data.size() != 2) value_error("the data of a matrix has ", data.size(), " dimensions, not 2");
  const int64_t outer = data[0], inner = data[1] * 8 / layout.element_bits;
  return layout.transposed ? Extent{inner, outer} : Extent{outer, inner};
}

}  // namespace

nc_tensor Operand::entry() const {
  nc_tensor entry{};
  entry.rows = rows;
  entry.columns = columns;
  const auto [data_index, scale_index] = buffers_of(usage);
  const auto add = [&](const at::Tensor& buffer, int index) {
    entry.buffer[index] = checked_address(buffer, stored_dtype(*plugin, index),
                                          stored_elements(*plugin, index, {rows, columns}),
                                          device(), kBufferNames[index]);
  };
  add(data, data_index);
  add(scale, scale_index);
  if (amax) entry.amax = checked_floats(*amax, 1, device(), "amax");
  return entry;
}

at::Tensor Operand::oriented(const nc_tensor& entry, at::ScalarType dtype) const {
  const at::Tensor value = decode(*plugin, usage, entry, device(), dtype);
  return over_rows ? value.t() : value;
}

OptionalSpanningScale Operand::spanning_scale() const {
  const bool spans = spans_tensor(layout());
  if (!spans && !has_two_levels(*plugin)) return std::nullopt;
  const at::Tensor& stored = spans ? scale : *amax;
  checked_floats(stored, 1, device(), spans ? "the scale" : "amax");
  return SpanningScale{stored, spans ? 1.0f : 1.0f / facts().tensor_range};
}

at::Tensor Operand::value_without_spanning_scale(at::ScalarType dtype) const {
  nc_tensor entry = this->entry();
  entry.amax = nullptr;
  at::Tensor one;
  if (spans_tensor(layout())) {
    one = at::full({1}, 1.0f, scale.options());
    entry.buffer[buffers_of(usage)[1]] = one.mutable_data_ptr();
  }
  return oriented(entry, dtype);
}

Operand operand_of(const Buffers& bytes, int usage, bool over_rows) {
  const auto [data, scale] = buffers_of(usage);
  return {
      &bytes.plugin,         usage,     over_rows, bytes.rows, bytes.columns, *bytes.buffers[data],
      *bytes.buffers[scale], bytes.amax};
}

std::vector<at::Tensor> stored_tensors(const Operand& operand) {
  std::vector<at::Tensor> stored{operand.data, operand.scale};
  if (operand.amax) stored.push_back(*operand.amax);
  return stored;
}

Operand operand_of(const std::vector<at::Tensor>& stored, const Plugin& plugin, int usage,
                   bool over_rows) {
  if (usage != 0 && usage != 1) value_error("a usage is 0 (rowwise) or 1 (columnwise)");
  const size_t count = has_two_levels(plugin) ? 3 : 2;
  if (stored.size() != count)
    value_error("an operand in ", plugin.format().name, " is ", count, " tensors, not ",
                stored.size());
  const bool is_known = !stored[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  const Extent matrix =
      is_known ? matrix_of(plugin.layout(2 * usage), stored[0].sizes()) : Extent{-1, -1};
  OptionalTensor amax;
  if (count == 3) amax = stored[2];
  return {&plugin, usage, over_rows, matrix.rows, matrix.columns, stored[0], stored[1], amax};
}

std::shared_ptr<Buffers> checked_bytes_of_key(const at::Tensor& key, const Plugin& plugin) {
  std::shared_ptr<Buffers> bytes = checked_bytes_of_key(key);
  if (std::string_view(bytes->facts().name) != plugin.format().name)
    type_error("a compiled function was made for a weight in ", plugin.format().name,
               ", and has got one in ", bytes->facts().name);
  return bytes;
}

void check_gathered(const Buffers& bytes, int usage) {
  if (bytes.has(usage)) return;
  value_error("a compiled function needs the ", kUsageNames[usage], " bytes of a ", bytes.rows, "x",
              bytes.columns, " weight in ", bytes.facts().name,
              ", which its last all-gather did not carry. Use nc.convert(..., recompute=True), "
              "which has every gather carry both usages");
}

Operand operand_of_key(const at::Tensor& key, const Plugin& plugin, int usage, bool over_rows) {
  const std::shared_ptr<Buffers> bytes = checked_bytes_of_key(key, plugin);
  check_gathered(*bytes, usage);
  return operand_of(*bytes, usage, over_rows);
}

}  // namespace narrowcast
