// The bytes of a matrix in a format: what casts write, decodings read, gathers carry and the
// optimizer updates. Facts and shapes are checked once, when the object is made.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/plugin.hpp"

namespace narrowcast {

namespace py = pybind11;

// A history's floats in a tensor: the multiplier of the present bytes, the next one, the amaxes.
inline constexpr int64_t kHistoryFloats = sizeof(nc_history) / sizeof(float);

// The value, [rows, columns] of a logical dtype, of a usage (0 rowwise, 1 columnwise) whose buffers
// an entry has.
at::Tensor decode(const Plugin& plugin, int usage, nc_tensor entry, at::Device device,
                  at::ScalarType dtype);

class Bytes {
 public:
  using Buffers = std::array<at::Tensor, NC_BUFFER_COUNT>;  // undefined where absent
  using Given = std::array<std::optional<at::Tensor>, NC_BUFFER_COUNT>;

  // `format`: Python's Format. `amax`, `history`: float32, where the format has them. TypeError or
  // ValueError if a tensor is not what the format stores for a matrix of this size.
  Bytes(py::object format, int64_t rows, int64_t columns, const Given& buffers,
        std::optional<at::Tensor> amax, std::optional<at::Tensor> history);

  // Room for some usages: undefined bytes, and the zeros that pad scales, which no cast writes.
  static std::shared_ptr<Bytes> allocate(py::object format, int64_t rows, int64_t columns,
                                         const std::vector<std::string>& usages, at::Device device);

  const Plugin& plugin() const { return plugin_; }
  const nc_format& facts() const { return plugin_.format(); }
  const py::object& format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t elements() const { return rows_ * columns_; }
  at::Device device() const { return device_; }
  const at::Tensor& buffer(int index) const { return buffers_[index]; }
  const at::Tensor& amax() const { return amax_; }
  const at::Tensor& history() const { return history_; }
  // Whether a usage's bytes are there: 0 rowwise, 1 columnwise.
  bool has(int usage) const { return buffers_[2 * usage].defined(); }
  // The usage that a product of a pass decodes; -1 if it is absent. Where columnwise is a
  // rearrangement, both usages have the same values, and rowwise is read faster.
  int product_usage(bool backward) const {
    if (facts().columnwise_derived) return has(0) ? 0 : 1;
    return has(backward) ? backward : -1;
  }
  // Whether kernels can work on it: not on meta, and nothing that torch.compile traces with.
  bool is_plain() const { return plain_; }

  // Whether FSDP2 has freed a buffer.
  bool is_freed() const;

  // Its row in the table of a launch, with addresses as they are now. ValueError if FSDP2 has
  // freed a buffer.
  nc_tensor entry() const;
  // The same for one usage alone.
  nc_tensor entry(int usage) const;

  // The value, [rows, columns] of a logical dtype, decoded from the bytes of a usage; of a matrix
  // that is_plain() and has them.
  at::Tensor decode(int usage, at::ScalarType dtype) const {
    return narrowcast::decode(plugin_, usage, entry(usage), device_, dtype);
  }

 private:
  void add_usage(nc_tensor& entry, int usage) const;
  nc_tensor empty_entry() const;

  py::object format_;
  const Plugin& plugin_;
  int64_t rows_, columns_;
  Buffers buffers_;
  at::Tensor amax_, history_;
  at::Device device_;
  bool plain_;
};

// None, in Python, for an undefined tensor.
inline std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The usage of this name: 0 rowwise, 1 columnwise. ValueError for another name.
int usage_of(const std::string& name);

}  // namespace narrowcast
