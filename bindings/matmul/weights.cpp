#include "bindings/matmul/weights.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/core/python_tensors.hpp"

namespace narrowcast {
namespace {

// Python's part, set when the package is imported: find_operand(weight), the Buffers;
// find_unread(weight), the same as they are; find_key(weight), an int; read(weight, operand,
// backward), its value by operators; refuse(weight, backward), which raises the error of a weight
// that lacks the usage of a pass; and find_plain(activation, weight), the plain tensor of an
// activation that is none.
PyObject* find_operand = nullptr;
PyObject* find_unread = nullptr;
PyObject* find_key = nullptr;
PyObject* read = nullptr;
PyObject* refuse = nullptr;
PyObject* find_plain = nullptr;

constexpr const char *kWeight = "weight", *kVersion = "version", *kMaster = "master";

// How nodes of graphs are held: newer versions of torch than 2.11 count references in them.
using NodePointer = decltype(torch::autograd::get_current_node());

template <class... Arguments>
NodePointer make_error(Arguments&&... arguments) {
  using torch::autograd::Error;
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Error>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Error>(std::forward<Arguments>(arguments)...);
  }
}

// Which tensor a weight's master is, that others may hold, and torch's count of the writes to it;
// empty if it has none, or one whose writes torch does not count.
std::vector<int64_t> state_of_master(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  const py::object master = master_of(py::cast(weight));
  if (!master || master.is_none()) return {};
  const at::Tensor& value = value_of(master);
  if (value.is_inference()) return {};
  return {reinterpret_cast<int64_t>(value.unsafeGetTensorImpl()),
          static_cast<int64_t>(value._version())};
}

}  // namespace

std::shared_ptr<Buffers> bytes_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<std::shared_ptr<Buffers>>(py::handle{find_operand}(py::cast(weight)));
}

std::shared_ptr<Buffers> unread_bytes_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<std::shared_ptr<Buffers>>(py::handle{find_unread}(py::cast(weight)));
}

int64_t key_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<int64_t>(py::handle{find_key}(py::cast(weight)));
}

at::Tensor value_in_trace(const at::Tensor& weight, const at::Tensor& operand, bool backward) {
  const py::gil_scoped_acquire python;
  return py::cast<at::Tensor>(py::handle{read}(weight, operand, backward));
}

int usage_of_weight(const at::Tensor& weight, const Buffers& bytes, bool backward) {
  const int usage = bytes.product_usage(backward);
  if (usage < 0) {
    const py::gil_scoped_acquire python;
    py::handle{refuse}(py::cast(weight), backward);
  }
  return usage;
}

at::Tensor in_memory(const at::Tensor& activation, const at::Tensor& weight) {
  if (is_plain(activation)) {
    if (!activation._is_zerotensor()) check_there(activation, "an input or gradient");
    return settled(activation);
  }
  const py::gil_scoped_acquire python;
  return settled(py::cast<at::Tensor>(py::handle{find_plain}(activation, weight)));
}

void save_weight(torch::autograd::AutogradContext* ctx, const at::Tensor& weight) {
  ctx->saved_data[kWeight] = weight;
  ctx->saved_data[kMaster] = state_of_master(weight);
  if (!weight.is_inference()) ctx->saved_data[kVersion] = static_cast<int64_t>(weight._version());
}

at::Tensor saved_weight(torch::autograd::AutogradContext* ctx) {
  at::Tensor weight = ctx->saved_data.at(kWeight).toTensor();
  TORCH_CHECK(!weight.is_inference(), "a gradient needs a weight that was made in inference mode, ",
              "of which torch does not count the writes: use a clone() made outside of it");
  const int64_t then = ctx->saved_data.at(kVersion).toInt(), now = weight._version();
  TORCH_CHECK(now == then, "a weight that a gradient needs has been modified by an inplace ",
              "operation since the forward: it is at version ", now, ", and version ", then,
              " was expected");
  const std::vector<int64_t> known = ctx->saved_data.at(kMaster).toIntVector();
  const std::vector<int64_t> master = state_of_master(weight);
  const bool is_same = !master.empty() && !known.empty() && master.front() == known.front();
  TORCH_CHECK(!is_same || master == known,
              "the master of a weight that a gradient needs, as state_dict() and the optimizer's ",
              "state hold it, has been modified by an inplace operation since the forward");
  // Torch lets go of saved variables alone, and whoever keeps a loss keeps the node.
  if (!torch::autograd::get_current_graph_task_keep_graph()) ctx->saved_data.erase(kWeight);
  return weight;
}

void save_bias(torch::autograd::AutogradContext* ctx, const OptionalTensor& bias) {
  if (bias && bias->requires_grad()) ctx->saved_data["bias"] = bias->sizes().vec();
}

at::Tensor bias_gradient(torch::autograd::AutogradContext* ctx, const at::Tensor& gradient) {
  const auto saved = ctx->saved_data.find("bias");
  if (saved == ctx->saved_data.end() || !ctx->needs_input_grad(2)) return {};
  const std::vector<int64_t> sizes = saved->second.toIntVector();
  return sizes.size() == 1 ? as_rows(gradient).sum(0) : at::sum_to(gradient, sizes);
}

bool is_watched() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         at::tracer::impl::is_dispatch_enabled();
}

std::vector<at::Tensor> without_second_derivative(std::vector<at::Tensor> gradients,
                                                  const at::Tensor& incoming) {
  if (!at::GradMode::is_enabled()) return gradients;
  // Of all that the gradients are functions of: who asks for one of these derivatives alone, as
  // torch.autograd.grad() does, comes by the nodes that lead there, and by no others.
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(incoming);
  if (const auto node = torch::autograd::get_current_node())
    edges.insert(edges.end(), node->next_edges().begin(), node->next_edges().end());
  const NodePointer error = make_error(
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
  module.def("is_watched", &is_watched, "Whether a mode or a trace looks at operators.");
  module.def("set_operands", [](py::object find, py::object unread, py::object key,
                                py::object value, py::object raise, py::object plain) {
    find_operand = find.release().ptr();
    find_unread = unread.release().ptr();
    find_key = key.release().ptr();
    read = value.release().ptr();
    refuse = raise.release().ptr();
    find_plain = plain.release().ptr();
  });
}

}  // namespace narrowcast
