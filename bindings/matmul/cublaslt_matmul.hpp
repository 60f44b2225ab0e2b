// Products by tensor cores without torch's _scaled_mm, which takes the host several times as long.
#pragma once

#include "bindings/matmul/operand.hpp"

namespace narrowcast {

// As tensor_core_matmul() (bindings/matmul/tensor_cores.hpp), of operands that suit
// tensor cores; undefined where this way is not open to them, and torch's is to be taken.
at::Tensor cublaslt_matmul(const Operand& a, const Operand& b, int32_t kind, bool fast,
                           at::ScalarType dtype);

}  // namespace narrowcast
