// Operators of torch, as C++ calls them, and the kernels of narrowcast's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace narrowcast {

template <class Signature>
auto typed_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

// Makes a function the kernel of an operator of narrowcast on CPU and GPU.
template <class Function>
void implement(const char* name, Function* function) {
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) device->impl(name, function);
}

}  // namespace narrowcast
