// Activations as matrices: of their last dimension, with zeros for rows that products want besides.
// Also in a trace, which may not know how many rows there are.
#pragma once

#include <ATen/ops/constant_pad_nd.h>

#include "bindings/core/tensors.hpp"

namespace narrowcast {

// A tensor of at least one dimension as a matrix of its last one, and how many rows that has.
inline c10::SymInt rows_of(const at::Tensor& tensor) {
  c10::SymInt rows = 1;
  for (const c10::SymInt& size : tensor.sym_sizes().slice(0, tensor.dim() - 1)) rows *= size;
  return rows;
}
inline at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape_symint({rows_of(tensor), tensor.sym_size(-1)});
}

// A matrix of as many rows as a tensor has as one, in the shape of that but for the last dimension.
inline at::Tensor shaped_like(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == 2) return matrix;
  std::vector<c10::SymInt> shape = like.sym_sizes().vec();
  shape.back() = matrix.sym_size(1);
  return matrix.reshape_symint(shape);
}

inline bool is_known(const c10::SymInt& size, int64_t value) {
  return size.maybe_as_int() == value;
}

// A matrix with zeros for the rows that are missing to a multiple. Of a size that a trace does not
// know nothing is asked: a graph is to serve all, and a size may have no value at all yet.
inline at::Tensor padded(const at::Tensor& rows, int64_t multiple) {
  if (multiple == 1) return rows;
  const c10::SymInt missing = (multiple - rows.sym_size(0) % multiple) % multiple;
  if (is_known(missing, 0)) return rows;
  return at::constant_pad_nd_symint(rows, {0, 0, 0, missing});
}

// The rows of a product that are no padding, in the shape of the tensor that they belong to.
inline at::Tensor unpadded(const at::Tensor& product, const at::Tensor& like, int64_t multiple) {
  const c10::SymInt rows = rows_of(like);
  const bool is_whole = multiple == 1 || is_known(product.sym_size(0) - rows, 0);
  const at::Tensor used = is_whole ? product : product.narrow_symint(0, 0, rows);
  return shaped_like(used, like);
}

}  // namespace narrowcast
