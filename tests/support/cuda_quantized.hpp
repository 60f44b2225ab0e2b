// A quantized matrix in the GPU's memory, and what compares the machines over it.
#pragma once

#include <atomic>
#include <vector>

#include "runtime/numeric/narrow.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/threads.hpp"

namespace narrowcast::test {

// The GPU's side of a Quantized.
struct DeviceQuantized {
  std::vector<DeviceArray<uint8_t>> buffer;
  DeviceArray<float> amax{std::vector<float>{0}};
  DeviceArray<nc_history> history;

  explicit DeviceQuantized(const Quantized& host) : history(std::vector<nc_history>{host.history}) {
    for (const auto& bytes : host.buffer) buffer.emplace_back(bytes);
  }
  void connect(const nc_format& format, nc_tensor& tensor) {
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) tensor.buffer[b] = buffer[b].get();
    tensor.amax = format.tensor_amax ? amax.get() : nullptr;
    tensor.history = history.get();
  }
  Quantized download(const nc_format& format, Extent matrix) const {
    Quantized host(format, matrix);
    for (int b = 0; b < NC_BUFFER_COUNT; ++b) host.buffer[b] = buffer[b].download();
    host.amax = amax.download()[0];
    host.history = history.download()[0];
    return host;
  }
};

inline bool ready(const nc_plugin& plugin) { return plugin.cuda != nullptr && has_gpu(); }

// Equal bits; a NaN is a NaN, whatever its payload.
template <class Type>
bool same(const std::vector<Type>& a, const std::vector<Type>& b) {
  std::atomic<bool> equal = a.size() == b.size();
  if (!equal) return false;
  in_ranges(static_cast<int64_t>(a.size()), kLeastElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float x = widen(a[i]), y = widen(b[i]);
      if (bits_of(x) != bits_of(y) && !(is_nan(x) && is_nan(y))) equal = false;
    }
  });
  return equal;
}

inline bool same(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) { return a == b; }
inline bool same(const std::vector<int8_t>& a, const std::vector<int8_t>& b) { return a == b; }

// Runs `function` of the GPU over tensors whose pointers are device pointers. What it did is seen
// by a download, which waits for it.
inline const char* run(nc_function function, nc_launch launch,
                       const std::vector<nc_tensor>& tensors,
                       const std::vector<nc_step>& steps = {}) {
  const DeviceArray<nc_tensor> table(tensors);
  const DeviceArray<nc_step> device_steps(steps);
  launch.tensors = table.get();
  launch.steps = steps.empty() ? nullptr : device_steps.get();
  return function(&launch);
}

inline const char* run(const std::vector<nc_function>& functions, const nc_launch& launch,
                       const std::vector<nc_tensor>& tensors,
                       const std::vector<nc_step>& steps = {}) {
  for (const nc_function function : functions) {
    if (const char* fault = run(function, launch, tensors, steps)) return fault;
  }
  return nullptr;
}

}  // namespace narrowcast::test
