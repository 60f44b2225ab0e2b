// Compares what a plugin makes of the golden matrices with the bytes that were frozen with the
// format's name.
#pragma once

#include <cstring>
#include <string>

#include "runtime/geometry/geometry.hpp"
#include "runtime/golden/matrix.hpp"
#include "runtime/launch/plan.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast::golden {

// Frozen bytes, in hexadecimal. Scales are without their padding, which must be left as it was.
struct Bytes {
  Matrix matrix;
  const char* buffer[NC_BUFFER_COUNT];
  uint32_t amax;        // of the tensor, as bits; compared only where the format stores it
  uint64_t decoded[2];  // digests of the values that rowwise and columnwise decode to
};

inline const char* const kBufferNames[NC_BUFFER_COUNT] = {"rowwise data", "rowwise scale",
                                                          "columnwise data", "columnwise scale"};

inline bool is_scale(int buffer) {
  return buffer == NC_ROWWISE_SCALE || buffer == NC_COLUMNWISE_SCALE;
}

inline std::vector<uint8_t> bytes_of_hexadecimal(const char* text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<uint8_t> bytes;
  for (; *text != '\0'; text += 2)
    bytes.push_back(static_cast<uint8_t>(digit(text[0]) << 4 | digit(text[1])));
  return bytes;
}

// A buffer as the plugin must leave it: the frozen bytes, with zeros as padding.
inline std::vector<uint8_t> expected(const nc_format& format, const Bytes& golden, int buffer) {
  const std::vector<uint8_t> frozen = bytes_of_hexadecimal(golden.buffer[buffer]);
  if (!is_scale(buffer)) return frozen;
  const Layout& layout = buffer == NC_ROWWISE_SCALE ? format.rowwise : format.columnwise;
  const Extent matrix{golden.matrix.rows, golden.matrix.columns};
  const Extent shape = scale_shape(layout, matrix), extent = scale_extent(layout, matrix);
  const auto row_bytes = static_cast<size_t>(extent.columns * layout.scale_bytes);
  const auto pitch = static_cast<size_t>(shape.columns * layout.scale_bytes);
  std::vector<uint8_t> padded(static_cast<size_t>(shape.rows) * pitch);
  for (size_t row = 0; row < static_cast<size_t>(extent.rows); ++row) {
    std::memcpy(padded.data() + row * pitch, frozen.data() + row * row_bytes, row_bytes);
  }
  return padded;
}

// One matrix, quantized and decoded by one machine that works on host memory.
class Check {
 public:
  Check(const nc_format& format, const nc_machine& machine, const Bytes& golden)
      : format_(format), machine_(machine), golden_(golden), values_(values(golden.matrix)) {
    tensor_.rows = golden.matrix.rows;
    tensor_.columns = golden.matrix.columns;
    tensor_.amax = format.tensor_amax ? &amax_ : nullptr;
    tensor_.history = &history_;
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) {
      expected_[b] = expected(format, golden, b);
      made_[b].assign(expected_[b].size(), 0);
      tensor_.buffer[b] = made_[b].data();
    }
  }

  // Empty, or what differs first.
  std::string fault() {
    tensor_.value = values_.data();
    if (machine_.reduce_amax != nullptr) run(machine_.reduce_amax);
    if (machine_.start_history != nullptr) run(machine_.start_history);
    run(machine_.cast);
    find_difference("cast");
    if (machine_.derive_columnwise != nullptr) {
      made_[NC_COLUMNWISE_DATA].assign(made_[NC_COLUMNWISE_DATA].size(), 0);
      made_[NC_COLUMNWISE_SCALE].assign(made_[NC_COLUMNWISE_SCALE].size(), 0);
      run(machine_.derive_columnwise);
      find_difference("derive_columnwise");
    }
    decode(machine_.dequantize_rowwise, 0, "dequantize_rowwise");
    decode(machine_.dequantize_columnwise, 1, "dequantize_columnwise");
    return fault_;
  }

 private:
  void run(nc_function function) {
    nc_launch launch{};
    launch.tensors = &tensor_;
    launch.count = 1;
    launch.amax = format_.tensor_amax ? &amax_of_launch_ : nullptr;
    launch.tiles = assign_tiles(&tensor_, 1, machine_, function);
    const char* failure = function(&launch);
    if (failure != nullptr && fault_.empty()) fault_ = failure;
  }

  void find_difference(const std::string& function) {
    for (int b = 0; b < NC_BUFFER_COUNT && fault_.empty(); ++b) {
      for (size_t i = 0; i < expected_[b].size() && fault_.empty(); ++i) {
        if (made_[b][i] == expected_[b][i]) continue;
        fault_ = function + ": " + kBufferNames[b] + ", byte " + std::to_string(i) + " is " +
                 std::to_string(made_[b][i]) + ", expected " + std::to_string(expected_[b][i]);
      }
    }
    const bool amax_differs =
        format_.tensor_amax && __builtin_bit_cast(uint32_t, amax_) != golden_.amax;
    if (fault_.empty() && amax_differs) fault_ = function + ": amax is " + std::to_string(amax_);
  }

  void decode(nc_function function, int usage, const std::string& name) {
    std::vector<float> decoded(values_.size());
    tensor_.value = decoded.data();
    run(function);
    if (fault_.empty() && digest(decoded) != golden_.decoded[usage])
      fault_ = name + ": other values than the golden ones";
  }

  const nc_format& format_;
  const nc_machine& machine_;
  const Bytes& golden_;
  std::vector<float> values_;
  std::vector<uint8_t> expected_[NC_BUFFER_COUNT], made_[NC_BUFFER_COUNT];
  nc_tensor tensor_{};
  nc_history history_{};
  float amax_ = 0, amax_of_launch_ = 0;
  std::string fault_;
};

inline std::string fault(const nc_plugin& plugin, const char* variant, const Bytes& golden) {
  return Check(*plugin.format, *plugin.cpu_variant(variant), golden).fault();
}

}  // namespace narrowcast::golden
