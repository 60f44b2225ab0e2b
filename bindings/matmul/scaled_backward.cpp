#include "bindings/matmul/scaled_backward.hpp"

#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/core/operators.hpp"
#include "bindings/matmul/rows.hpp"
#include "bindings/matmul/scaled_mm.hpp"

namespace narrowcast {
namespace {

Activation cast_of(const at::Tensor& gradient, const Recipe& recipe, int64_t row_multiple,
                   Usages products) {
  std::optional<RandomKey> key;
  if (recipe.facts.stochastic_gradient != 0) key = drawn_key(gradient.device());
  return cast_activation(padded(as_rows(gradient), row_multiple).contiguous(), recipe.gradient,
                         products, key);
}

// ---- as an operator ----

using Operator = std::vector<at::Tensor>(const at::Tensor&, at::TensorList, const at::Tensor&,
                                         at::IntArrayRef, const std::string&, bool, bool,
                                         at::ScalarType);

std::vector<at::Tensor> run(const at::Tensor& gradient, at::TensorList input, const at::Tensor& key,
                            at::IntArrayRef /*matrix*/, const std::string& format, bool of_input,
                            bool of_weight, at::ScalarType dtype) {
  const std::shared_ptr<Buffers> bytes = checked_bytes_of_key(key, plugin_named(format));
  const ScaledBackward backward(bytes, gradient, {of_input, of_weight});
  std::vector<at::Tensor> gradients;
  if (of_input) {
    const int usage = backward.weight_usage();
    check_gathered(*bytes, usage < 0 ? 1 : usage);
    gradients.push_back(backward.input_gradient(usage));
  }
  if (of_weight) gradients.push_back(backward.weight_gradient(input.vec(), dtype));
  return gradients;
}

}  // namespace

ScaledBackward::ScaledBackward(std::shared_ptr<Buffers> weight, const at::Tensor& gradient,
                               Usages products)
    : weight_(std::move(weight)),
      gradient_(gradient),
      recipe_(weight_->facts()),
      row_multiple_(row_multiple(recipe_, gradient.device(), products.columnwise)),
      cast_(cast_of(gradient, recipe_, row_multiple_, products)) {}

int ScaledBackward::weight_usage() const {
  const bool columnwise =
      weight_->has(1) &&
      has_tensor_cores(gradient_.device(), recipe_.kind(NC_PRODUCT_INPUT_GRADIENT));
  return columnwise ? 1 : weight_->product_usage(/*backward=*/true);
}

at::Tensor ScaledBackward::input_gradient(int weight_usage) const {
  const at::Tensor product =
      scaled_mm(cast_.operand(0), operand_of(*weight_, weight_usage, /*over_rows=*/true),
                recipe_.kind(NC_PRODUCT_INPUT_GRADIENT), /*fast=*/false, gradient_.scalar_type());
  return unpadded(product, gradient_, row_multiple_);
}

at::Tensor ScaledBackward::weight_gradient(const std::vector<at::Tensor>& input,
                                           at::ScalarType dtype) const {
  return scaled_mm(cast_.operand(1), operand_of(input, recipe_.input, 1, /*over_rows=*/true),
                   recipe_.kind(NC_PRODUCT_WEIGHT_GRADIENT), /*fast=*/false, dtype);
}

std::vector<at::Tensor> scaled_backward_in_graph(const at::Tensor& gradient,
                                                 const std::vector<at::Tensor>& input,
                                                 const at::Tensor& key, const Buffers& bytes,
                                                 Usages products, at::ScalarType dtype) {
  static const auto kNearest = typed_operator<Operator>("narrowcast::scaled_backward");
  static const auto kStochastic =
      typed_operator<Operator>("narrowcast::scaled_backward", "stochastic");
  const auto& run = bytes.facts().products.stochastic_gradient != 0 ? kStochastic : kNearest;
  const std::array<int64_t, 2> matrix{bytes.rows, bytes.columns};
  return run.call(gradient, input, key, matrix, bytes.facts().name, products.rowwise,
                  products.columnwise, dtype);
}

void bind_scaled_backward() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  const std::string schema =
      "(Tensor gradient, Tensor[] input, Tensor key, int[] matrix, str format, bool of_input, "
      "bool of_weight, ScalarType dtype) -> Tensor[]";
  library.def(("scaled_backward" + schema).c_str());
  // An overload of its own, because torch is told other things of it: it draws a seed on the host.
  library.def(("scaled_backward.stochastic" + schema).c_str(),
              {at::Tag::nondeterministic_seeded, at::Tag::cudagraph_unsafe});
  implement("scaled_backward", &run);
  implement("scaled_backward.stochastic", &run);
}

}  // namespace narrowcast
