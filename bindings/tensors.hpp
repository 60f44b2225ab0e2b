// From torch tensors to the pointers of a launch, with every check that keeps a kernel inside its
// memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/plugin.hpp"

namespace narrowcast {

// One matrix, as Python passes it: rows, columns, value, the four buffers, the stored amax, the
// history of delayed scaling. None where absent.
using Matrix = std::tuple<int64_t, int64_t, std::optional<at::Tensor>,
                          std::array<std::optional<at::Tensor>, NC_BUFFER_COUNT>,
                          std::optional<at::Tensor>, std::optional<at::Tensor>>;

// A history's floats in a tensor: the multiplier of the present bytes, the next one, the amaxes.
inline constexpr int64_t kHistoryFloats = sizeof(nc_history) / sizeof(float);

// The dtype's number in the plugin's table. TypeError, with `what`, for others than float32,
// bfloat16 and float16.
int32_t dtype_number(at::ScalarType dtype, const std::string& what);

// The address of a tensor that must be on `device`, contiguous, of `elements` elements and in
// memory. ValueError, with `what`, otherwise.
void* checked_pointer(const at::Tensor& tensor, int64_t elements, at::Device device,
                      const std::string& what);

// The same for numbers that must be float32.
float* checked_floats(const at::Tensor& tensor, int64_t count, at::Device device,
                      const std::string& what);

// The checked table of a launch.
std::vector<nc_tensor> describe(const Plugin& plugin, const std::vector<Matrix>& matrices,
                                at::Device device);

// Fills buffers, amax and history of one entry.
void describe_buffers(nc_tensor& entry, const Plugin& plugin, const Matrix& matrix,
                      at::Device device);

// The device of the first tensor found; all others are checked against it.
at::Device device_of(const std::vector<Matrix>& matrices);

}  // namespace narrowcast
