// The bytes of a matrix in a format: what casts write, decodings read, gathers carry and the
// optimizer updates. Facts and shapes are checked once, when the object is made.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "bindings/core/plugin.hpp"
#include "bindings/core/tensors.hpp"

namespace narrowcast {

namespace py = pybind11;

// The value, [rows, columns] of a logical dtype, of a usage (0 rowwise, 1 columnwise) whose buffers
// an entry has.
at::Tensor decode(const Plugin& plugin, int usage, nc_tensor entry, at::Device device,
                  at::ScalarType dtype);

struct Buffers {
  using Tensors = std::array<OptionalTensor, NC_BUFFER_COUNT>;

  // `format`: Python's Format. `amax`, `history`: float32, where the format has them. TypeError or
  // ValueError if a tensor is not what the format stores for a matrix of this size.
  Buffers(py::object format, int64_t rows, int64_t columns, Tensors buffers, OptionalTensor amax,
          OptionalTensor history);

  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  // Also without Python's lock, as a backward drops the buffers of a part.
  ~Buffers();  // NOLINT(*-exception-escape)

  // Room for some usages: undefined bytes, and the zeros that pad scales, which no cast writes.
  static std::shared_ptr<Buffers> allocate(py::object format, int64_t rows, int64_t columns,
                                           const std::vector<std::string>& usages,
                                           at::Device device);

  const nc_format& facts() const { return plugin.format(); }
  // Whether a usage's bytes are there: 0 rowwise, 1 columnwise.
  bool has(int usage) const { return buffers[2 * usage].has_value(); }
  // The usage that a product of a pass decodes; -1 if it is absent. Where columnwise is a
  // rearrangement, both usages have the same values, and rowwise is read faster.
  int product_usage(bool backward) const {
    if (facts().columnwise_derived) return has(0) ? 0 : 1;
    return has(backward) ? backward : -1;
  }

  // Whether FSDP2 has freed a buffer.
  bool is_freed() const;

  // Where a buffer that is there lies now. ValueError if FSDP2 has freed it.
  void* address(int buffer) const;

  // Its row in the table of a launch, of all that is there or of one usage only, with addresses as
  // they are now. ValueError if FSDP2 has freed a buffer.
  nc_tensor entry(std::optional<int> only = {}) const;

  // The value, [rows, columns] of a logical dtype, decoded from the bytes of a usage; of a matrix
  // that is_plain and has them.
  at::Tensor decode(int usage, at::ScalarType dtype) const {
    return narrowcast::decode(plugin, usage, entry(usage), device, dtype);
  }

  // A region as a matrix, over the same memory where that has the same bytes: in the usages that
  // are asked for and there.
  std::shared_ptr<Buffers> part(Box region, bool rowwise = true, bool columnwise = true) const;
  // Rows and columns exchanged, over the same buffers: where the usages mirror each other.
  std::shared_ptr<Buffers> exchanged() const;

  py::object format;
  const Plugin& plugin;
  const int64_t rows, columns;
  const Tensors buffers;
  const OptionalTensor amax, history;
  const at::Device device;
  // Whether kernels can work on it: not on meta, and nothing that torch.compile traces with.
  const bool is_plain;

 private:
  void* address(const at::Tensor& tensor, const char* name) const;
};

// The part of a buffer that a region of a matrix has, as the buffer of a matrix: the same memory
// where that has the same bytes, else a copy with the zeros that pad it.
at::Tensor buffer_of_region(const Plugin& plugin, int index, const at::Tensor& buffer,
                            Extent matrix, Box region);

// Room for the buffers of some usages: undefined bytes, and the zeros that pad scales, which no
// cast writes. ValueError if the format cannot hold the matrix.
Buffers::Tensors allocate_buffers(const Plugin& plugin, Extent matrix, bool rowwise,
                                  bool columnwise, at::Device device);

}  // namespace narrowcast
