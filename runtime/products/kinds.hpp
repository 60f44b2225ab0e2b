// The kinds of products that matrix units know: what an operand of each looks like is decided in
// kind_of.hpp, what runs them in bindings/matmul/tensor_cores.cpp.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

struct ProductKind {
  const char* name;
  const char* machines;  // that have a unit for it
};

// In the order of nc_product_kind.
inline constexpr ProductKind kProductKinds[NC_PRODUCT_KIND_COUNT] = {
    {"dequantized", "none"},
    {"one scale by one scale", "sm_89 and newer"},
    {"1x128 by 128x128", "sm_90"},
    {"1x128 by 1x128", "sm_90"},
    {"1x32 e8m0", "sm_100, written but not yet run"},
    {"1x16 e4m3 under a tensor scale", "sm_100, written but not yet run"},
};

}  // namespace narrowcast
