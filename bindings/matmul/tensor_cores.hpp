// Products by a GPU's tensor cores.
#pragma once

#include <numeric>

#include "bindings/matmul/operand.hpp"

namespace narrowcast {

// What a weight's format says of the products of its linear layers.
struct Recipe {
  explicit Recipe(const nc_format& weight)
      : facts(weight.products),
        input(plugin_named(facts.input)),
        gradient(plugin_named(facts.gradient)) {}

  int32_t kind(nc_product_of product) const { return facts.product[product].kind; }
  // Rows whose codes share bytes, columnwise: activations have a multiple of them.
  int64_t rows_of_a_byte() const {
    return std::lcm(elements_per_group(input.layout(NC_COLUMNWISE_DATA)),
                    elements_per_group(gradient.layout(NC_COLUMNWISE_DATA)));
  }

  const nc_products& facts;
  const Plugin &input, &gradient;
};

// a @ b.T, [kept of a, kept of b], by the tensor cores for a kind (nc_product_kind); undefined
// where the device has none, or the shapes do not suit them. `fast`: they may accumulate in fewer
// bits.
at::Tensor tensor_core_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                              at::ScalarType dtype);

// The same of operands that suit tensor cores without torch's _scaled_mm, which takes the host
// several times as long; undefined where this way is not open to them, and torch's is to be taken.
at::Tensor cublaslt_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                           at::ScalarType dtype);

// Whether a device has tensor cores for a kind, so that operands are best cast in the usage that
// those read; and whether they take operands of these shapes, with the bytes that they have.
bool has_tensor_cores(at::Device device, int32_t kind);
bool suits_tensor_cores(const Operand& a, const Operand& b, int32_t kind);

// Rows that an activation and its gradient come in multiples of, for their bytes and the device's
// tensor cores: zeros are added up to it, for a decoded product would cost more. `weight_gradient`:
// whether they are summed over rows, too.
int64_t row_multiple(const Recipe& recipe, at::Device device, bool weight_gradient);

}  // namespace narrowcast
