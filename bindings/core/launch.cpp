#include "bindings/core/launch.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bindings/core/errors.hpp"
#include "bindings/core/tensors.hpp"
#include "runtime/gather/flat_transfer.hpp"
#include "runtime/launch/fill.hpp"
#include "runtime/launch/plan.hpp"
#include "runtime/products/rescale.hpp"
#include "runtime/products/unit.hpp"

namespace narrowcast {
namespace {

// torch's threads, which honour torch.set_num_threads().
void parallel_for(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  at::parallel_for(0, count, 1, [=](int64_t begin, int64_t end) { body(context, begin, end); });
}

void fill(float* memory, const float* from, int64_t count, at::Device device) {
  call(cuda_fill(), "filling memory",
       Fill{.memory = memory, .from = from, .count = count, .stream = nullptr}, device);
}

}  // namespace

void* stream_of(at::Device device) {
  if (!device.is_cuda()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

template <class Argument>
void call(const char* (*function)(const Argument*), const char* what, Argument argument,
          at::Device device) {
  const c10::DeviceGuard guard(device);
  argument.stream = stream_of(device);
  if constexpr (requires { argument.parallel_for; }) argument.parallel_for = &parallel_for;
  std::optional<pybind11::gil_scoped_release> release;
  if (PyGILState_Check()) release.emplace();
  const char* failure = function(&argument);
  if (failure != nullptr) throw std::runtime_error(text(what, " failed: ", failure));
}
template void call(nc_function, const char*, nc_launch, at::Device);
template void call(nc_begin_function, const char*, nc_begin, at::Device);
template void call(nc_transfer_function, const char*, nc_transfer, at::Device);
template void call(nc_parts_function, const char*, nc_parts, at::Device);
template void call(RescaleFunction, const char*, Rescale, at::Device);
template void call(FillFunction, const char*, Fill, at::Device);
template void call(UploadFunction, const char*, Upload, at::Device);
template void call(UnitFunction, const char*, UnitProduct, at::Device);
template void call(FlatTransferFunction, const char*, FlatTransfer, at::Device);

at::Tensor copied_to(at::Device gpu, const void* host, size_t bytes) {
  const c10::DeviceGuard guard(gpu);
  // CUDA takes pageable memory into its own before it returns, which torch's copies of it rest on
  // too. Of more than this it waits for the stream first.
  constexpr size_t kStaged = 64 << 10;
  if (bytes <= kStaged) {
    const at::Tensor borrowed = at::from_blob(const_cast<void*>(host), static_cast<int64_t>(bytes),
                                              at::TensorOptions().dtype(at::kByte));
    return borrowed.to(gpu, /*non_blocking=*/true);
  }
  // Pinned, so that the copy of more waits for nothing either; torch's allocator keeps the memory
  // until the copy is done.
  at::Tensor staging = at::empty({static_cast<int64_t>(bytes)},
                                 at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(staging.mutable_data_ptr(), host, bytes);
  return staging.to(gpu, /*non_blocking=*/true);
}

at::Tensor uploaded_to(at::Device gpu, std::span<const uint64_t> words) {
  const auto count = static_cast<int64_t>(words.size());
  at::Tensor made = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(gpu));
  call(cuda_upload(), "uploading a table",
       Upload{.memory = made.mutable_data_ptr(),
              .from = words.data(),
              .words = count,
              .stream = nullptr},
       gpu);
  return made;
}

at::Tensor zeros_of(int64_t floats, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  if (!device.is_cuda() || cuda_fill() == nullptr) return at::zeros({floats}, options);
  at::Tensor made = at::empty({floats}, options);
  fill(made.mutable_data_ptr<float>(), nullptr, floats, device);
  return made;
}

void copy_floats(const at::Tensor& to, const at::Tensor& from) {
  const at::Device device = to.device();
  float* const target = checked_floats(to, to.numel(), device, "the target of a copy");
  const float* const source = checked_floats(from, to.numel(), device, "the source of a copy");
  if (device.is_cuda() && cuda_fill() != nullptr)
    fill(target, source, to.numel(), device);
  else
    to.copy_(from);
}

void MatrixTable::assign(std::vector<nc_tensor> matrices, nc_function function) {
  tiles_ = assign_tiles(matrices.data(), std::ssize(matrices), machine_, function);
  const std::span<const nc_tensor> now = matrices, before = matrices_;
  if (tiles_ == 0 || (now.size() == before.size() &&
                      std::memcmp(now.data(), before.data(), now.size_bytes()) == 0))
    return;
  matrices_ = std::move(matrices);
  table_ = {matrices_, device_, resident_};
}

void MatrixTable::run(nc_function function, const char* what, nc_launch options) const {
  if (tiles_ == 0) return;
  options.tensors = table_.rows;
  options.host_tables = !table_.copy.defined();
  options.count = size();
  options.tiles = tiles_;
  call(function, what, options, device_);
}

}  // namespace narrowcast
