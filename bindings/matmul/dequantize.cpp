// The operator narrowcast::dequantize: the value of a weight, or of a view of one, of which a graph
// of torch.compile holds the key.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "bindings/core/module.hpp"
#include "bindings/matmul/operand.hpp"

namespace narrowcast {
namespace {

// The part of a buffer that some rows of a matrix have, as the buffer of a matrix of their own: the
// same memory where that has the same bytes, else a copy with the zeros that pad it.
at::Tensor buffer_of_rows(const at::Tensor& buffer, const Plugin& plugin, int index, Extent matrix,
                          int64_t begin, int64_t end) {
  if (spans_tensor(plugin, index)) return buffer;
  const nc_layout& layout = plugin.layout(index);
  const Box rows{{begin, 0}, {end, matrix.columns}};
  const Box box = is_data(index) ? data_box(layout, rows) : scale_box(layout, rows);
  const at::Tensor part = buffer.narrow(0, box.begin.rows, box.end.rows - box.begin.rows)
                              .narrow(1, box.begin.columns, box.end.columns - box.begin.columns);
  const Extent own{end - begin, matrix.columns}, shape = stored_shape(plugin, index, own);
  if (part.sizes() == at::IntArrayRef({shape.rows, shape.columns}) && part.is_contiguous())
    return part;
  const at::Tensor copy = at::zeros({shape.rows, shape.columns}, buffer.options());
  const Extent used = used_shape(plugin, index, own);
  const auto corner = [&](const at::Tensor& tensor) {
    return tensor.narrow(0, 0, used.rows).narrow(1, 0, used.columns);
  };
  corner(copy).copy_(corner(part));
  return copy;
}

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
  matrix.data = buffer_of_rows(matrix.data, *matrix.plugin, data, whole, begin, end);
  matrix.scale = buffer_of_rows(matrix.scale, *matrix.plugin, scale, whole, begin, end);
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
  static torch::Library cpu = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CPU);
  static torch::Library cuda = MAKE_TORCH_LIBRARY_IMPL(narrowcast, CUDA);
  for (torch::Library* device : {&cpu, &cuda}) device->impl("dequantize", &dequantize);
}

}  // namespace narrowcast
