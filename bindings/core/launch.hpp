// One function of a plugin over some matrices, on the CPU or on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "runtime/plugin/table.h"

namespace narrowcast {

// What the random words of a matrix are a function of: seed, step, and the index of its first
// element in the whole tensor.
using RandomKey = std::tuple<uint64_t, uint64_t, uint64_t>;

// Calls a function of the runtime or of a plugin on what it takes (nc_launch, nc_begin,
// nc_transfer, nc_parts, FlatTransfer, Rescale, UnitProduct, Fill or Upload), with torch's current
// stream and threads and without Python's lock. RuntimeError, naming `what`, if it fails.
template <class Argument>
void call(const char* (*function)(const Argument*), const char* what, Argument argument,
          at::Device device);

// The current stream of a GPU (cudaStream_t); null on the CPU.
void* stream_of(at::Device device);

// float32 zeros, which take the host less time than torch's.
at::Tensor zeros_of(int64_t floats, at::Device device);

// One float32 tensor's elements into another of one device, likewise.
void copy_floats(const at::Tensor& to, const at::Tensor& from);

// Bytes of the host in the memory of a GPU: a copy on the current stream.
at::Tensor copied_to(at::Device gpu, const void* host, size_t bytes);

// The same of words, int64, by kernels that have them among their parameters.
at::Tensor uploaded_to(at::Device gpu, std::span<const uint64_t> words);

// Rows of a launch's table where the machine reads them: the host's own, on the CPU and if they are
// few enough to travel among a kernel's parameters; else, or if they are to be `resident`, a copy
// in the GPU's memory.
template <class Row>
struct Table {
  Table() = default;
  Table(std::span<const Row> host, at::Device device, bool resident = false) : rows(host.data()) {
    if (device.is_cpu() || (!resident && host.size() <= NC_PARAMETER_TENSORS)) return;
    copy = copied_to(device, host.data(), host.size_bytes());
    rows = static_cast<const Row*>(copy.const_data_ptr());
  }

  const Row* rows = nullptr;
  at::Tensor copy;
};

// The matrices of launches on one machine. `resident`: its rows are in the GPU's memory, however
// few.
class MatrixTable {
 public:
  MatrixTable(const nc_machine& machine, at::Device device, bool resident = false)
      : machine_(machine), device_(device), resident_(resident) {}

  // Fills in the first_tile of each, for `function` (see assign_tiles). A copy for the GPU is made
  // if they are others than before.
  void assign(std::vector<nc_tensor> matrices, nc_function function = nullptr);
  // Runs `function` over all. `options`: what else the plugin's table says of the launch.
  void run(nc_function function, const char* what, nc_launch options = {}) const;

  int64_t size() const { return std::ssize(matrices_); }
  const nc_machine& machine() const { return machine_; }
  at::Device device() const { return device_; }

 private:
  const nc_machine& machine_;
  at::Device device_;
  bool resident_;
  std::vector<nc_tensor> matrices_;
  int64_t tiles_ = 0;
  Table<nc_tensor> table_;
};

}  // namespace narrowcast
