// One function of a plugin over some matrices, on the CPU or on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "runtime/plugin/table.h"

namespace narrowcast {

// Bytes in the device's memory: `host` itself on the CPU, else a copy on the current stream.
at::Tensor to_device(const void* host, int64_t bytes, at::Device device);

// torch's threads, which honour torch.set_num_threads().
void parallel_for(int64_t count, void (*body)(void*, int64_t, int64_t), void* context);

// The current stream of a GPU (cudaStream_t); null on the CPU.
void* stream_of(at::Device device);

struct LaunchOptions {
  float* amax = nullptr;        // one float a matrix
  const float* skip = nullptr;  // if not 0, nothing happens
  bool source_bf16 = false;
  bool stochastic = false;  // with seed, step and first of each matrix
};

// Runs `function` over the matrices, whose first_tile it fills in. RuntimeError, naming `what`, if
// it fails.
void run(nc_function function, const char* what, const nc_machine& machine, nc_tensor* matrices,
         int64_t count, at::Device device, const LaunchOptions& options);

// The last step of every launch: RuntimeError with the plugin's own sentence.
void check_launch(const char* failure, const char* what);

}  // namespace narrowcast
