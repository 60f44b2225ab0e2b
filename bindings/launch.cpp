#include "bindings/launch.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <stdexcept>

#include "bindings/errors.hpp"
#include "runtime/launch/plan.hpp"

namespace narrowcast {

at::Tensor to_device(const void* host, int64_t bytes, at::Device device) {
  // Pinned, so that the copy waits for nothing; torch's allocator keeps the memory until the copy
  // is done.
  at::Tensor staging =
      at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda()));
  std::memcpy(staging.data_ptr(), host, static_cast<size_t>(bytes));
  return device.is_cuda() ? staging.to(device, /*non_blocking=*/true) : staging;
}

void parallel_for(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  at::parallel_for(0, count, 1, [=](int64_t begin, int64_t end) { body(context, begin, end); });
}

void check_launch(const char* failure, const char* what) {
  if (failure != nullptr) throw std::runtime_error(text(what, " failed: ", failure));
}

void run(nc_function function, const char* what, const nc_machine& machine,
         std::vector<nc_tensor> matrices, at::Device device, const LaunchOptions& options) {
  nc_launch launch{};
  launch.count = static_cast<int64_t>(matrices.size());
  launch.tiles = assign_tiles(matrices.data(), launch.count, machine);
  if (launch.tiles == 0) return;
  const c10::DeviceGuard guard(device);
  at::Tensor table;
  if (device.is_cuda()) {
    table =
        to_device(matrices.data(), launch.count * static_cast<int64_t>(sizeof(nc_tensor)), device);
    launch.tensors = static_cast<const nc_tensor*>(table.data_ptr());
  } else {
    launch.tensors = matrices.data();
  }
  launch.amax = options.amax ? options.amax->data_ptr<float>() : nullptr;
  launch.source_bf16 = options.source_bf16;
  launch.stochastic = options.stochastic;
  launch.stream = reinterpret_cast<void*>(
      options.stream);  // NOLINT(performance-no-int-to-ptr): so Python passes it
  launch.parallel_for = &parallel_for;
  pybind11::gil_scoped_release release;
  check_launch(function(&launch), what);
}

}  // namespace narrowcast
