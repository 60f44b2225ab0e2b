#include "bindings/core/module.hpp"

PYBIND11_MODULE(_C, module) {
  module.doc() =
      "Formats, casts, gathers, products and updates of narrowcast's C++ side. Private: use the "
      "package `narrowcast`.";
  narrowcast::bind_facts(module);
  narrowcast::bind_bytes(module);
  narrowcast::bind_store(module);
  narrowcast::bind_graph_key(module);
  narrowcast::bind_changes(module);
  narrowcast::bind_quantize(module);
  narrowcast::bind_flat_shards(module);
  narrowcast::bind_flat_gather(module);
  narrowcast::bind_gather(module);
  narrowcast::bind_parts(module);
  narrowcast::bind_linear(module);
  narrowcast::bind_dequantize();
  narrowcast::bind_weights(module);
  narrowcast::bind_tensor_cores(module);
  narrowcast::bind_scaled_mm();
  narrowcast::bind_scaled_backward();
  narrowcast::bind_layer(module);
  narrowcast::bind_optimizer(module);
  narrowcast::bind_param_groups_snapshot(module);
}
