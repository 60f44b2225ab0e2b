// Scales that span a tensor, which products leave out of their operands.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "bindings/core/plugin.hpp"

namespace narrowcast {

// stored * multiplier; `stored` is one float32, checked when an operand's scale is asked for.
struct SpanningScale {
  at::Tensor stored;
  float multiplier;
};
using OptionalSpanningScale = std::optional<SpanningScale>;

// A float32 product on a GPU times the scales that its operands left out, in a logical dtype. May
// be `product` itself.
at::Tensor under_spanning_scales(const at::Tensor& product, const OptionalSpanningScale& left,
                                 const OptionalSpanningScale& right, at::ScalarType dtype);

}  // namespace narrowcast
