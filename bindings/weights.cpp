#include "bindings/weights.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>

namespace narrowcast {
namespace {

// Python's part, set when the package is imported: operand_of(weight), the Bytes; and
// refuse(weight, backward), which raises the error of a weight that lacks the usage of a pass.
PyObject* operand_of = nullptr;
PyObject* refuse = nullptr;

}  // namespace

std::shared_ptr<Bytes> bytes_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<std::shared_ptr<Bytes>>(py::handle{operand_of}(py::cast(weight)));
}

int usage_of_weight(const at::Tensor& weight, const Bytes& bytes, bool backward) {
  const int usage = bytes.product_usage(backward);
  if (usage < 0) {
    const py::gil_scoped_acquire python;
    py::handle{refuse}(py::cast(weight), backward);
  }
  return usage;
}

bool is_watched() { return c10::impl::TorchDispatchModeTLS::any_modes_set(); }

std::vector<at::Tensor> without_second_derivative(std::vector<at::Tensor> gradients,
                                                  const at::Tensor& incoming) {
  if (!at::GradMode::is_enabled()) return gradients;
  // Of all that the gradients are functions of: who asks for one of these derivatives alone, as
  // torch.autograd.grad() does, comes by the nodes that lead there, and by no others.
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(incoming);
  if (const auto node = torch::autograd::get_current_node())
    edges.insert(edges.end(), node->next_edges().begin(), node->next_edges().end());
  const auto error = std::make_shared<torch::autograd::Error>(
      "a product with a QuantizedTensor has no second derivative: use weight.dequantize() and a "
      "plain product",
      std::move(edges));
  for (at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    gradient = gradient.detach();
    torch::autograd::create_gradient_edge(gradient, error);
  }
  return gradients;
}

void bind_weights(py::module_& module) {
  module.def("set_operands", [](py::object find, py::object raise) {
    operand_of = find.release().ptr();
    refuse = raise.release().ptr();
  });
}

}  // namespace narrowcast
