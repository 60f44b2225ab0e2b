// A loaded format, as Python holds it, and the shapes of its buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

struct Plugin {
  const nc_plugin* table;
  std::string path;

  const nc_format& format() const { return *table->format; }
  const nc_layout& layout(int buffer) const {
    return buffer < NC_COLUMNWISE_DATA ? format().rowwise : format().columnwise;
  }
  // The functions for a device. NotImplementedError where the plugin has none.
  const nc_machine& machine(at::Device device) const;
};

// A loaded format. ValueError if there is none of this name.
const Plugin& plugin_named(std::string_view name);

inline constexpr const char* kBufferNames[NC_BUFFER_COUNT] = {
    "rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"};
inline constexpr const char* kUsageNames[2] = {"rowwise", "columnwise"};

// The usage of this name: 0 rowwise, 1 columnwise. ValueError for another name.
int usage_of(const std::string& name);

// The data and the scale buffer of a usage.
inline std::array<int, 2> buffers_of(int usage) { return {2 * usage, 2 * usage + 1}; }

inline bool is_data(int buffer) {
  return buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA;
}

// The dtype that a buffer has as a tensor.
inline at::ScalarType stored_dtype(const Plugin& plugin, int buffer) {
  const std::string_view scale = plugin.format().scale_dtype;
  return !is_data(buffer) && scale == "float32" ? at::kFloat : at::kByte;
}

// Whether a buffer is the one scale of a whole tensor.
inline bool spans_tensor(const Plugin& plugin, int buffer) {
  return !is_data(buffer) && spans_tensor(plugin.layout(buffer));
}
// Whether a block's scale is relative to one of the tensor, so that values depend on its amax, too.
inline bool has_two_levels(const Plugin& plugin) { return plugin.format().tensor_range != 0; }

// The stored matrix of a buffer: bytes of data, or scales with their padding.
inline Extent stored_shape(const Plugin& plugin, int buffer, Extent matrix) {
  const nc_layout& layout = plugin.layout(buffer);
  return is_data(buffer) ? data_shape(layout, matrix) : scale_shape(layout, matrix);
}

// The same without padding.
inline Extent used_shape(const Plugin& plugin, int buffer, Extent matrix) {
  const nc_layout& layout = plugin.layout(buffer);
  return is_data(buffer) ? data_shape(layout, matrix) : scale_extent(layout, matrix);
}

inline int64_t stored_elements(const Plugin& plugin, int buffer, Extent matrix) {
  const Extent shape = stored_shape(plugin, buffer, matrix);
  return shape.rows * shape.columns;
}

// The sizes of a tensor for a buffer, or a part of it, of this shape: two, but (1,) for the one
// scale of a whole tensor.
inline std::vector<int64_t> tensor_sizes(const Plugin& plugin, int buffer, Extent shape) {
  if (spans_tensor(plugin, buffer)) return {1};
  return {shape.rows, shape.columns};
}

// ValueError, with the shape and the multiple, if sub-byte elements do not fill whole bytes.
void check_holds(const Plugin& plugin, int usage, int64_t rows, int64_t columns);

}  // namespace narrowcast
