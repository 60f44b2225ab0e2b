// One function of a plugin over some matrices, on the CPU or on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/plugin/table.h"

namespace narrowcast {

// Bytes in the device's memory: `host` itself on the CPU, else a copy on the current stream.
at::Tensor to_device(const void* host, int64_t bytes, at::Device device);

// Whether a table of so many rows needs a copy in the device's memory: a few travel with the
// launch.
bool travels_alone(int64_t count, at::Device device);

// torch's threads, which honour torch.set_num_threads().
void parallel_for(int64_t count, void (*body)(void*, int64_t, int64_t), void* context);

// The current stream of a GPU (cudaStream_t); null on the CPU.
void* stream_of(at::Device device);

// The matrices of launches, where their machine reads them. A copy in the device's memory is made
// anew only when they have changed.
class MatrixTable {
 public:
  MatrixTable(const nc_machine& machine, at::Device device) : machine_(machine), device_(device) {}

  const nc_machine& machine() const { return machine_; }
  at::Device device() const { return device_; }
  // Fills in the first_tile of each.
  void assign(std::vector<nc_tensor> matrices);
  // Runs `function` over all, with what else `launch` says. RuntimeError, naming `what`, if it
  // fails.
  void run(nc_function function, const char* what, nc_launch launch) const;

 private:
  const nc_machine& machine_;
  at::Device device_;
  std::vector<nc_tensor> matrices_;
  int64_t tiles_ = 0;
  at::Tensor on_device_;  // undefined where they travel with the launch
};

// The last step of every launch: RuntimeError with the plugin's own sentence.
void check_launch(const char* failure, const char* what);

}  // namespace narrowcast
