// Operators of torch on the buffers of a weight: what graphs of torch.compile hold.
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/operand.hpp"

namespace narrowcast {
namespace {

Operand operand(const at::Tensor& data, const at::Tensor& scale, const OptionalTensor& amax,
                const OptionalTensor& present, const std::string& name, int64_t usage) {
  std::vector<at::Tensor> stored{data, scale};
  if (amax) stored.push_back(*amax);
  const Operand made = operand_of(stored, plugin_named(name), static_cast<int>(usage), false);
  check_present(present, made);
  return made;
}

// `operands`: of the product that the value is for, which are not read. A graph cannot decode
// before they are there, so the backward's decoding, for one with a gradient, stays in the
// backward.
at::Tensor dequantize(const at::Tensor& data, const at::Tensor& scale, const OptionalTensor& amax,
                      const OptionalTensor& present, const std::string& name, int64_t usage,
                      at::ScalarType dtype, at::TensorList /*operands*/) {
  return operand(data, scale, amax, present, name, usage).value(dtype);
}

}  // namespace

void bind_dequantize() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def(
      "dequantize(Tensor data, Tensor scale, Tensor? amax, Tensor? present, str format, int usage, "
      "ScalarType dtype, Tensor[] operands) -> Tensor");
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) {
    device->impl("dequantize", &dequantize);
  }
}

}  // namespace narrowcast
