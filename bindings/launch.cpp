#include "bindings/launch.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <optional>
#include <stdexcept>

#include "bindings/errors.hpp"
#include "runtime/launch/plan.hpp"

namespace narrowcast {

at::Tensor to_device(const void* host, int64_t bytes, at::Device device) {
  // Pinned, so that the copy waits for nothing; torch's allocator keeps the memory until the copy
  // is done.
  at::Tensor staging =
      at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda()));
  std::memcpy(staging.mutable_data_ptr(), host, static_cast<size_t>(bytes));
  return device.is_cuda() ? staging.to(device, /*non_blocking=*/true) : staging;
}

void parallel_for(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  at::parallel_for(0, count, 1, [=](int64_t begin, int64_t end) { body(context, begin, end); });
}

void* stream_of(at::Device device) {
  if (!device.is_cuda()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void check_launch(const char* failure, const char* what) {
  if (failure != nullptr) throw std::runtime_error(text(what, " failed: ", failure));
}

void run(nc_function function, const char* what, const nc_machine& machine, nc_tensor* matrices,
         int64_t count, at::Device device, const LaunchOptions& options) {
  nc_launch launch{};
  launch.count = count;
  launch.tiles = assign_tiles(matrices, count, machine);
  if (launch.tiles == 0) return;
  const c10::DeviceGuard guard(device);
  at::Tensor table;
  launch.tensors = matrices;
  launch.host_tables = count <= NC_PARAMETER_TENSORS;
  if (device.is_cuda() && !launch.host_tables) {
    table = to_device(matrices, count * static_cast<int64_t>(sizeof(nc_tensor)), device);
    launch.tensors = static_cast<const nc_tensor*>(table.const_data_ptr());
  }
  launch.amax = options.amax;
  launch.found_inf = options.skip;
  launch.source_bf16 = options.source_bf16;
  launch.stochastic = options.stochastic;
  launch.stream = stream_of(device);
  launch.parallel_for = &parallel_for;
  std::optional<pybind11::gil_scoped_release> release;
  if (PyGILState_Check()) release.emplace();
  check_launch(function(&launch), what);
}

}  // namespace narrowcast
