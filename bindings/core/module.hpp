// The extension narrowcast._C: one bind function a topic.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace narrowcast {

namespace py = pybind11;

void bind_facts(py::module_& module);
void bind_bytes(py::module_& module);
void bind_changes(py::module_& module);
void bind_store(py::module_& module);
void bind_graph_key(py::module_& module);
void bind_quantize(py::module_& module);
void bind_flat_shards(py::module_& module);
void bind_flat_gather(py::module_& module);
void bind_gather(py::module_& module);
void bind_parts(py::module_& module);
void bind_linear(py::module_& module);
void bind_dequantize();
void bind_weights(py::module_& module);
void bind_tensor_cores(py::module_& module);
void bind_scaled_mm();
void bind_scaled_backward();
void bind_layer(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_param_groups_snapshot(py::module_& module);

}  // namespace narrowcast
