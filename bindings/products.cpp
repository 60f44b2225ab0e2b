// Operators of torch on the buffers of a weight: what graphs of torch.compile hold.
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "bindings/bytes.hpp"
#include "bindings/module.hpp"
#include "runtime/plugin/registry.hpp"

namespace narrowcast {
namespace {

Plugin plugin_named(const std::string& name) {
  const nc_plugin* table = find_plugin(name);
  if (table == nullptr) value_error("there is no format '", name, "'");
  return {table, "the plugin of " + name};
}

// `present`: which usages the last gather has brought, where gathers differ by pass.
void check_present(const OptionalTensor& present, int64_t usage, const std::string& name,
                   int64_t rows, int64_t columns) {
  if (usage != 0 && usage != 1) value_error("a usage is 0 (rowwise) or 1 (columnwise)");
  if (!present || (*static_cast<const int64_t*>(present->const_data_ptr()) >> usage & 1) != 0)
    return;
  value_error("a compiled function needs the ", kUsageNames[usage], " bytes of a ", rows, "x",
              columns, " weight in ", name,
              ", which its last all-gather did not carry. Use nc.convert(..., recompute=True), "
              "which has every gather carry both usages");
}

at::Tensor dequantize(const at::Tensor& data, const at::Tensor& scale, const OptionalTensor& amax,
                      const OptionalTensor& present, const std::string& name, int64_t usage,
                      int64_t rows, int64_t columns, at::ScalarType dtype) {
  check_present(present, usage, name, rows, columns);
  const Plugin plugin = plugin_named(name);
  nc_tensor entry{};
  entry.rows = rows;
  entry.columns = columns;
  const auto [data_index, scale_index] = buffers_of(static_cast<int>(usage));
  const auto add = [&](const at::Tensor& buffer, int index) {
    entry.buffer[index] = checked_address(buffer, stored_dtype(plugin, index),
                                          stored_elements(plugin, index, {rows, columns}),
                                          data.device(), kBufferNames[index]);
  };
  add(data, data_index);
  add(scale, scale_index);
  if (amax) entry.amax = checked_floats(*amax, 1, data.device(), "amax");
  return decode(plugin, static_cast<int>(usage), entry, data.device(), dtype);
}

// One operator for both passes: opaque, so that no graph moves a decoding across a gather.
at::Tensor product(const at::Tensor& operand, const at::Tensor& data, const at::Tensor& scale,
                   const OptionalTensor& amax, const OptionalTensor& present,
                   const OptionalTensor& bias, const std::string& name, int64_t usage, int64_t rows,
                   int64_t columns, bool backward) {
  const at::Tensor value =
      dequantize(data, scale, amax, present, name, usage, rows, columns, operand.scalar_type());
  return backward ? at::matmul(operand, value) : at::linear(operand, value, bias);
}

}  // namespace

void bind_products() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def(
      "product(Tensor operand, Tensor data, Tensor scale, Tensor? amax, Tensor? present, "
      "Tensor? bias, str format, int usage, int rows, int columns, bool backward) -> Tensor");
  library.def(
      "dequantize(Tensor data, Tensor scale, Tensor? amax, Tensor? present, str format, int usage, "
      "int rows, int columns, ScalarType dtype) -> Tensor");
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) {
    device->impl("product", &product);
    device->impl("dequantize", &dequantize);
  }
}

}  // namespace narrowcast
