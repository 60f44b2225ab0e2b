// The operator narrowcast::dequantize: the value of a weight, or of a view of one, of which a graph
// of torch.compile holds the key.
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/core/operators.hpp"
#include "bindings/matmul/operand.hpp"

namespace narrowcast {
namespace {

// The view of a matrix stored row by row that has these sizes and strides, from its `first` element
// on. Of the matrix those rows are decoded, cut where its blocks may be, in which the view lies.
at::Tensor value_of_view(Operand matrix, at::ScalarType dtype, at::IntArrayRef sizes,
                         at::IntArrayRef strides, int64_t first) {
  if (c10::multiply_integers(sizes) == 0)
    return at::empty_strided(sizes, strides, matrix.data.options().dtype(dtype));
  int64_t last = first;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  const Extent whole{matrix.rows, matrix.columns};
  const int64_t step = cut_step(matrix.layout()).rows;
  const int64_t begin = first / whole.columns / step * step;
  const int64_t end = std::min(ceil_div(last / whole.columns + 1, step) * step, whole.rows);
  const auto [data, scale] = buffers_of(matrix.usage);
  const Box rows{{begin, 0}, {end, matrix.columns}};
  matrix.data = buffer_of_region(*matrix.plugin, data, matrix.data, whole, rows);
  matrix.scale = buffer_of_region(*matrix.plugin, scale, matrix.scale, whole, rows);
  matrix.rows = end - begin;
  return matrix.value(dtype).as_strided(sizes, strides, first - begin * whole.columns);
}

// `matrix`: rows and columns, for the shape in a trace. `operands`: of the product that the value
// is for, which are not read. A graph cannot decode before they are there, so the backward's
// decoding, for one with a gradient, stays in the backward. `sizes`, `strides`, `first`: of a view;
// without sizes the whole matrix.
at::Tensor dequantize(const at::Tensor& key, at::IntArrayRef /*matrix*/, const std::string& format,
                      int64_t usage, at::ScalarType dtype, at::TensorList /*operands*/,
                      at::OptionalIntArrayRef sizes, at::OptionalIntArrayRef strides,
                      int64_t first) {
  const Operand matrix =
      operand_of_key(key, plugin_named(format), static_cast<int>(usage), /*over_rows=*/false);
  return sizes ? value_of_view(matrix, dtype, *sizes, strides.value(), first) : matrix.value(dtype);
}

}  // namespace

void bind_dequantize() {
  static torch::Library library(torch::Library::FRAGMENT, "narrowcast", std::nullopt, __FILE__,
                                __LINE__);
  library.def(
      "dequantize(Tensor key, int[] matrix, str format, int usage, ScalarType dtype, "
      "Tensor[] operands, int[]? sizes=None, int[]? strides=None, int first=0) -> Tensor");
  implement("dequantize", &dequantize);
}

}  // namespace narrowcast
