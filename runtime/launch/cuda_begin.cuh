// Steps that the GPU counts itself, so that a CUDA graph can take them: their numbers and constants
// are made where the launch that follows reads them.
#pragma once

#include "runtime/geometry/geometry.hpp"
#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT {

constexpr int kBeginThreads = 128;

// One thread a tensor: a few hundred operations in float64.
template <class Rule>
__global__ void __launch_bounds__(kBeginThreads) begin_kernel(const nc_begin begin) {
  const int64_t index = int64_t{blockIdx.x} * kBeginThreads + threadIdx.x;
  if (index >= begin.count) return;
  const nc_counted tensor = begin.tensors[index];
  double options[kOptionCount<Rule>];
  for (int i = 0; i < kOptionCount<Rule>; ++i) {
    const nc_option& option = begin.options[tensor.group * kOptionCount<Rule> + i];
    options[i] = option.tensor == nullptr ? option.number : *option.tensor;
  }
  nc_step step{};
  step.t = tensor.count == nullptr ? 1 : static_cast<int64_t>(*tensor.count) + 1;
  step.grad = tensor.grad;
  step.grad_dtype = tensor.grad_dtype;
  const double grad_scale = begin.grad_scale == nullptr ? 1 : *begin.grad_scale;
  step.grad_multiplier = static_cast<float>(1 / grad_scale);
  make_constants<Rule>(options, step.t, step.constants);
  begin.steps[index] = step;
  const bool is_taken = begin.found_inf == nullptr || *begin.found_inf == 0;
  if (tensor.count != nullptr && is_taken) *tensor.count = static_cast<float>(step.t);
}

struct CudaSteps {
  static constexpr bool kCountsSteps = true;
  template <class Rule>
  static const char* begin(const nc_begin* begin) {
    const int64_t blocks = ceil_div(begin->count, int64_t{kBeginThreads});
    if (blocks == 0) return nullptr;
    begin_kernel<Rule><<<static_cast<unsigned>(blocks), kBeginThreads, 0,
                         static_cast<cudaStream_t>(begin->stream)>>>(*begin);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }
};

}  // namespace narrowcast::inline NC_VARIANT
