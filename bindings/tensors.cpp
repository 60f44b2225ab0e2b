#include "bindings/tensors.hpp"

#include <torch/csrc/utils/pybind.h>

#include "bindings/errors.hpp"

namespace narrowcast {

int32_t dtype_number(at::ScalarType dtype, const std::string& what) {
  switch (dtype) {
    case at::kFloat:
      return NC_F32;
    case at::kBFloat16:
      return NC_BF16;
    case at::kHalf:
      return NC_F16;
    default:
      type_error(what, " is ", c10::toString(dtype), ": float32, bfloat16 or float16 is needed");
  }
}

void* checked_pointer(const at::Tensor& tensor, int64_t elements, at::Device device,
                      const std::string& what) {
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch() || !tensor.has_storage()) {
    type_error(what, " is not a plain tensor");
  }
  if (tensor.device() != device)
    value_error(what, " is on ", tensor.device().str(), ", not on ", device.str());
  if (!tensor.is_contiguous()) value_error(what, " is not contiguous");
  if (tensor.numel() != elements) {
    value_error(what, " has ", tensor.numel(), " elements, not the ", elements, " of its matrix");
  }
  const size_t last = (tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
  if (tensor.numel() != 0 && tensor.storage().nbytes() < last) {
    value_error(what, " has been freed: FSDP2 frees a gathered weight when it reshards its module");
  }
  return tensor.data_ptr();
}

float* checked_floats(const at::Tensor& tensor, int64_t count, at::Device device,
                      const std::string& what) {
  if (tensor.scalar_type() != at::kFloat)
    type_error(what, " is ", c10::toString(tensor.scalar_type()), ", not float32");
  return static_cast<float*>(checked_pointer(tensor, count, device, what));
}

void describe_buffers(nc_tensor& entry, const Plugin& plugin, const Matrix& matrix,
                      at::Device device) {
  const auto& [rows, columns, value, buffers, amax, history] = matrix;
  for (int buffer = 0; buffer < NC_BUFFER_COUNT; ++buffer) {
    entry.buffer[buffer] = nullptr;
    if (!buffers[buffer]) continue;
    const bool wide = !is_data(buffer) && plugin.layout(buffer).scale_bytes == 4;
    const std::string what =
        text(kBufferNames[buffer], " (", plugin.format().name, ", ", rows, "x", columns, ")");
    if (buffers[buffer]->scalar_type() != (wide ? at::kFloat : at::kByte)) {
      type_error(what, " is ", c10::toString(buffers[buffer]->scalar_type()), ", not ",
                 wide ? "float32" : "uint8");
    }
    const Extent shape = stored_shape(plugin, buffer, {rows, columns});
    entry.buffer[buffer] =
        checked_pointer(*buffers[buffer], shape.rows * shape.columns, device, what);
  }
  for (const int data : {NC_ROWWISE_DATA, NC_COLUMNWISE_DATA}) {
    if (buffers[data].has_value() != buffers[data + 1].has_value()) {
      value_error(kBufferNames[data], " and ", kBufferNames[data + 1],
                  " go together: one of them is missing");
    }
  }
  entry.amax = amax ? checked_floats(*amax, 1, device, "amax") : nullptr;
  entry.history = nullptr;
  if (history) {
    float* numbers = checked_floats(*history, kHistoryFloats, device, "the history");
    entry.history = reinterpret_cast<nc_history*>(numbers);
  }
}

std::vector<nc_tensor> describe(const Plugin& plugin, const std::vector<Matrix>& matrices,
                                at::Device device) {
  std::vector<nc_tensor> entries;
  entries.reserve(matrices.size());
  for (const Matrix& matrix : matrices) {
    nc_tensor& entry = entries.emplace_back();
    entry.rows = std::get<0>(matrix);
    entry.columns = std::get<1>(matrix);
    if (const auto& value = std::get<2>(matrix)) {
      entry.value_dtype = dtype_number(value->scalar_type(), "the value");
      entry.value = checked_pointer(*value, entry.rows * entry.columns, device, "the value");
    }
    describe_buffers(entry, plugin, matrix, device);
  }
  return entries;
}

at::Device device_of(const std::vector<Matrix>& matrices) {
  for (const auto& [rows, columns, value, buffers, amax, history] : matrices) {
    if (value) return value->device();
    for (const auto& buffer : buffers) {
      if (buffer) return buffer->device();
    }
  }
  return at::kCPU;
}

}  // namespace narrowcast
