// A loaded format, as Python holds it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "runtime/geometry/geometry.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

struct Plugin {
  const nc_plugin* table;
  std::string path;

  const nc_format& format() const { return *table->format; }
  const nc_layout& layout(int buffer) const {
    return buffer == NC_ROWWISE_DATA || buffer == NC_ROWWISE_SCALE ? format().rowwise
                                                                   : format().columnwise;
  }
  // The functions for a device. NotImplementedError where the plugin has none.
  const nc_machine& machine(at::Device device) const;
};

inline constexpr const char* kBufferNames[NC_BUFFER_COUNT] = {
    "rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"};

inline bool is_data(int buffer) {
  return buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA;
}

// The stored matrix of a buffer: bytes of data, or scales with their padding.
inline Extent stored_shape(const Plugin& plugin, int buffer, Extent matrix) {
  const nc_layout& layout = plugin.layout(buffer);
  return is_data(buffer) ? data_shape(layout, matrix) : scale_shape(layout, matrix);
}

}  // namespace narrowcast
