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

std::shared_ptr<Buffers> buffers_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;  // a backward comes here without
  static PyObject* const kView = PyUnicode_InternFromString("_view");
  static PyObject* const kOperand = PyUnicode_InternFromString("operand");
  const py::object view = attribute(py::cast(weight), kView);
  if (!view) type_error("narrowcast::linear takes a QuantizedTensor as its weight");
  return py::cast<std::shared_ptr<Buffers>>(attribute(view, kOperand)());
}

std::shared_ptr<Buffers> unread_buffers_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<std::shared_ptr<Buffers>>(bytes_of(py::cast(weight)));
}

OptionalTensor present_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  static PyObject* const kPresent = PyUnicode_InternFromString("present");
  return py::cast<OptionalTensor>(of_store(py::cast(weight), kPresent));
}

at::Tensor value_in_graph(const at::Tensor& weight, const at::Tensor& operand, bool backward) {
  const py::gil_scoped_acquire python;
  const py::object value = py::module_::import("narrowcast.matmul.operators").attr("weight_value");
  return py::cast<at::Tensor>(
      value(weight, py::cast(operand).attr("dtype"), backward, std::vector{operand}));
}

int usage_of_weight(const at::Tensor& weight, const Buffers& buffers, bool backward) {
  const int usage = buffers.product_usage(backward);
  if (usage < 0) {
    const py::gil_scoped_acquire python;
    const py::object error =
        py::cast(weight).attr("_store").attr("usage_absent")(kUsageNames[backward ? 1 : 0]);
    PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
    throw py::error_already_set();
  }
  return usage;
}

at::Tensor in_memory(const at::Tensor& activation, const at::Tensor& weight) {
  if (is_plain(activation)) {
    if (!activation._is_zerotensor()) check_there(activation, "an input or gradient");
    return resolved(activation);
  }
  const py::gil_scoped_acquire python;
  const py::object object = py::cast(activation);
  const py::module_ collectives = py::module_::import("torch.distributed._functional_collectives");
  if (py::isinstance(object, collectives.attr("AsyncCollectiveTensor")))
    return resolved(py::cast<at::Tensor>(object.attr("wait")()));
  if (activation.layout() != at::kStrided) return resolved(activation.to_dense());
  type_error(py::cast<std::string>(py::cast(weight).attr("describe")()),
             ": scaled products cast the memory of an input or gradient, and one of type ",
             py::cast<std::string>(py::type::of(object).attr("__name__")), " on ",
             activation.device().str(), " has none");
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
  // Torch frees saved variables alone, and a loss that is kept keeps the node.
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
}

}  // namespace narrowcast
