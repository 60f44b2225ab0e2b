#include "bindings/matmul/traced.hpp"

#include <torch/library.h>

#include "bindings/core/errors.hpp"
#include "bindings/core/module.hpp"
#include "bindings/matmul/operators.hpp"

namespace narrowcast {
namespace {

at::Tensor by_weight_of_plain(at::TensorList, const at::Tensor&, bool, at::ScalarType) {
  type_error("narrowcast::scaled_by_weight takes a QuantizedTensor as its weight");
}

std::vector<at::Tensor> gradients_of_plain(const at::Tensor&, const at::Tensor&, at::TensorList,
                                           bool, bool) {
  type_error("narrowcast::scaled_gradients_by_weight takes a QuantizedTensor as its weight");
}

// From the tensors of all usages, one behind the other, and one amax.
CastTensors split(std::vector<at::Tensor> all, Usages usages, bool has_amax) {
  CastTensors made;
  size_t next = 0;
  const auto take = [&](std::vector<at::Tensor>& to) {
    to = {all[next], all[next + 1]};
    next += 2;
    if (has_amax) to.push_back(all.back());
  };
  if (usages.rowwise) take(made.rowwise);
  if (usages.columnwise) take(made.columnwise);
  return made;
}

}  // namespace

CastTensors cast_in_trace(const at::Tensor& rows, const Plugin& plugin, Usages usages) {
  using Cast = std::vector<at::Tensor>(const at::Tensor&, const std::string&, bool, bool);
  static const auto kCast = typed_operator<Cast>("narrowcast::cast");
  const nc_format& facts = plugin.format();
  return split(kCast.call(rows, facts.name, usages.rowwise, usages.columnwise), usages,
               facts.tensor_amax != 0);
}

at::Tensor by_weight_in_trace(const std::vector<at::Tensor>& rowwise, const at::Tensor& weight,
                              bool backward, at::ScalarType dtype) {
  static const auto kOperator =
      typed_operator<decltype(by_weight_of_plain)>("narrowcast::scaled_by_weight");
  return kOperator.call(rowwise, weight, backward, dtype);
}

std::vector<at::Tensor> gradients_in_trace(const at::Tensor& rows, const at::Tensor& weight,
                                           const std::vector<at::Tensor>& input, Usages usages) {
  static const auto kOperator =
      typed_operator<decltype(gradients_of_plain)>("narrowcast::scaled_gradients_by_weight");
  return kOperator.call(rows, weight, input, usages.rowwise, usages.columnwise);
}

void bind_traced() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def(
      "scaled_by_weight(Tensor[] operand, Tensor weight, bool backward, ScalarType dtype) -> "
      "Tensor");
  library.def(
      "scaled_gradients_by_weight(Tensor gradient, Tensor weight, Tensor[] input, bool of_input, "
      "bool of_weight) -> Tensor[]");
  static torch::Library plain = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd);
  plain.impl("scaled_by_weight", &by_weight_of_plain);
  plain.impl("scaled_gradients_by_weight", &gradients_of_plain);
}

}  // namespace narrowcast
