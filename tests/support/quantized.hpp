// A quantized matrix in host memory, laid out by the one geometry, for tests that call a plugin's
// functions through its table.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/geometry/geometry.hpp"
#include "runtime/launch/plan.hpp"
#include "runtime/plugin/table.h"
#include "tests/support/adamw.hpp"

namespace narrowcast::test {

// What memory holds that is to be written, or is not to be.
inline constexpr uint8_t kPoison = 0xa5;

inline const Layout& layout_of(const nc_format& format, int buffer) {
  return buffer < NC_COLUMNWISE_DATA ? format.rowwise : format.columnwise;
}

inline int64_t bytes_of(const nc_format& format, Extent matrix, int buffer) {
  const Layout& layout = layout_of(format, buffer);
  const bool data = buffer == NC_ROWWISE_DATA || buffer == NC_COLUMNWISE_DATA;
  const Extent shape = data ? data_shape(layout, matrix) : scale_shape(layout, matrix);
  return shape.rows * shape.columns * (data ? 1 : layout.scale_bytes);
}

inline bool holds(const nc_format& format, Extent matrix) {
  return narrowcast::holds(format.rowwise, matrix) && narrowcast::holds(format.columnwise, matrix);
}

// The four buffers of a quantized tensor and its amax, zeroed: padding is zero from the start, and
// no cast writes it.
struct Quantized {
  std::vector<uint8_t> buffer[NC_BUFFER_COUNT];
  float amax = 0;
  nc_history history{.present = 1, .next = 1, .amax = {}};

  Quantized(const nc_format& format, Extent matrix) {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b)
      buffer[b].assign(static_cast<size_t>(bytes_of(format, matrix, b)), 0);
  }

  void connect(const nc_format& format, nc_tensor& tensor) {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) tensor.buffer[b] = buffer[b].data();
    tensor.amax = format.tensor_amax ? &amax : nullptr;
    tensor.history = &history;
  }

  bool operator==(const Quantized& other) const {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      if (buffer[b] != other.buffer[b]) return false;
    }
    return std::memcmp(&amax, &other.amax, sizeof(amax)) == 0 &&
           std::memcmp(&history, &other.history, sizeof(history)) == 0;
  }
};

inline nc_tensor tensor_of(Extent matrix) {
  nc_tensor tensor{};
  tensor.rows = matrix.rows;
  tensor.columns = matrix.columns;
  return tensor;
}

inline nc_launch launch_of(const nc_machine& machine, nc_tensor* tensors, int64_t count,
                           const nc_step* steps = nullptr, float* amax = nullptr,
                           nc_function function = nullptr) {
  nc_launch launch{};
  launch.tensors = tensors;
  launch.steps = steps;
  launch.count = count;
  launch.amax = amax;
  launch.tiles = assign_tiles(tensors, count, machine, function);
  return launch;
}

// The functions that make bytes of values, in order, and those of an optimizer's step: what the
// format does not need is not there.
inline std::vector<nc_function> present(std::vector<nc_function> functions) {
  std::erase(functions, nullptr);
  return functions;
}
inline std::vector<nc_function> quantizing(const nc_machine& machine) {
  return present({machine.reduce_amax, machine.start_history, machine.cast});
}
inline std::vector<nc_function> updating(const nc_machine& machine) {
  if (adamw_of(machine).update == nullptr) return {adamw_of(machine).update_amax, machine.cast};
  return present({adamw_of(machine).update, machine.record_amax});
}

// Returns the first failure, or nullptr.
inline const char* run_all(const std::vector<nc_function>& functions, const nc_launch& launch) {
  for (const nc_function function : functions) {
    if (const char* fault = function(&launch)) return fault;
  }
  return nullptr;
}
inline const char* quantize(const nc_machine& machine, const nc_launch& launch) {
  return run_all(quantizing(machine), launch);
}
inline const char* update(const nc_machine& machine, const nc_launch& launch) {
  return run_all(updating(machine), launch);
}

}  // namespace narrowcast::test
