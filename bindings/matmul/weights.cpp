#include "bindings/matmul/weights.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/core/store.hpp"
#include "bindings/matmul/rows.hpp"

namespace narrowcast {
namespace {

constexpr const char *kWeight = "weight", *kVersion = "version";

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
  return store_of(py::cast(weight))->bytes;
}

at::Tensor key_of_weight(const at::Tensor& weight) {
  const py::gil_scoped_acquire python;
  return py::cast<at::Tensor>(py::cast(weight).attr("_view").attr("graph_key"));
}

at::Tensor value_in_graph(const at::Tensor& weight, const at::Tensor& operand, bool backward) {
  const py::gil_scoped_acquire python;
  const py::object value = py::module_::import("narrowcast.matmul.operators").attr("weight_value");
  return py::cast<at::Tensor>(
      value(weight, py::cast(operand).attr("dtype"), backward, std::vector{operand}));
}

int usage_of_weight(const at::Tensor& weight, const Buffers& buffers, bool backward) {
  const int usage = buffers.product_usage(backward);
  if (usage < 0) throw_absent(weight, backward);
  return usage;
}

void throw_absent(const at::Tensor& weight, bool backward) {
  const py::gil_scoped_acquire python;
  const py::object error =
      py::cast(weight).attr("_store").attr("usage_absent")(kUsageNames[backward ? 1 : 0]);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

at::Tensor in_memory(const at::Tensor& activation, const at::Tensor& weight) {
  if (is_plain(activation)) {
    check_there(activation, "an input or gradient");
    return activation.is_neg() ? activation.resolve_neg() : activation;
  }
  const py::gil_scoped_acquire python;
  const py::object object = py::cast(activation);
  const py::module_ collectives = py::module_::import("torch.distributed._functional_collectives");
  if (py::isinstance(object, collectives.attr("AsyncCollectiveTensor")))
    return py::cast<at::Tensor>(object.attr("wait")()).resolve_neg();
  type_error(py::cast<std::string>(py::cast(weight).attr("describe")()),
             ": scaled products cast the memory of an input or gradient, and one of type ",
             py::cast<std::string>(py::type::of(object).attr("__name__")), " on ",
             activation.device().str(), " has none");
}

void save_weight(torch::autograd::AutogradContext* ctx, const at::Tensor& weight) {
  ctx->saved_data[kWeight] = weight;
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

void bind_weights(py::module_& module) {
  module.def("is_watched", &is_watched, "Whether a mode or a trace looks at operators.");
}

}  // namespace narrowcast
