// What a weight's format says of the products of its linear layers.
#pragma once

#include <numeric>

#include "bindings/core/plugin.hpp"

namespace narrowcast {

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

}  // namespace narrowcast
