#include "bindings/launch.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

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

bool travels_alone(int64_t count, at::Device device) {
  return device.is_cuda() && count > NC_PARAMETER_TENSORS;
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

void MatrixTable::assign(std::vector<nc_tensor> matrices) {
  const auto count = std::ssize(matrices);
  tiles_ = assign_tiles(matrices.data(), count, machine_);
  const size_t bytes = matrices.size() * sizeof(nc_tensor);
  if (tiles_ == 0 || (matrices.size() == matrices_.size() &&
                      std::memcmp(matrices.data(), matrices_.data(), bytes) == 0))
    return;
  matrices_ = std::move(matrices);
  on_device_ = travels_alone(count, device_)
                   ? to_device(matrices_.data(), static_cast<int64_t>(bytes), device_)
                   : at::Tensor();
}

void MatrixTable::run(nc_function function, const char* what, nc_launch launch) const {
  if (tiles_ == 0) return;
  const c10::DeviceGuard guard(device_);
  launch.host_tables = !on_device_.defined();
  launch.tensors = launch.host_tables ? matrices_.data()
                                      : static_cast<const nc_tensor*>(on_device_.const_data_ptr());
  launch.count = std::ssize(matrices_);
  launch.tiles = tiles_;
  launch.stream = stream_of(device_);
  launch.parallel_for = &parallel_for;
  std::optional<pybind11::gil_scoped_release> release;
  if (PyGILState_Check()) release.emplace();
  check_launch(function(&launch), what);
}

}  // namespace narrowcast
