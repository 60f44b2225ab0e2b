// Operators of torch on the buffers of a weight: what graphs of torch.compile hold.
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "bindings/module.hpp"
#include "bindings/operand.hpp"

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

at::Tensor dequantize(const at::Tensor& data, const at::Tensor& scale, const OptionalTensor& amax,
                      const OptionalTensor& present, const std::string& name, int64_t usage,
                      at::ScalarType dtype) {
  return operand(data, scale, amax, present, name, usage).value(dtype);
}

// One operator for both passes: opaque, so that no graph moves a decoding across a gather.
at::Tensor product(const at::Tensor& operand, const at::Tensor& data, const at::Tensor& scale,
                   const OptionalTensor& amax, const OptionalTensor& present,
                   const OptionalTensor& bias, const std::string& name, int64_t usage,
                   bool backward) {
  const at::Tensor value =
      dequantize(data, scale, amax, present, name, usage, operand.scalar_type());
  return backward ? at::matmul(operand, value) : at::linear(operand, value, bias);
}

}  // namespace

void bind_products() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def(
      "product(Tensor operand, Tensor data, Tensor scale, Tensor? amax, Tensor? present, "
      "Tensor? bias, str format, int usage, bool backward) -> Tensor");
  library.def(
      "dequantize(Tensor data, Tensor scale, Tensor? amax, Tensor? present, str format, int usage, "
      "ScalarType dtype) -> Tensor");
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) {
    device->impl("product", &product);
    device->impl("dequantize", &dequantize);
  }
}

}  // namespace narrowcast
