"""What torch is told of the operators dequantize, cast, scaled_mm, scaled_forward and
scaled_backward besides their kernels (bindings/matmul/): the shapes of their results, and the
operations that they count as.
"""

import functools
import itertools

import torch

from narrowcast import registry
from narrowcast.registry import SCALES, USAGES, buffers_of
from narrowcast.tensor import QuantizedTensor, casting, compiling

ops = torch.ops.narrowcast


def weight_value(
    weight: QuantizedTensor, dtype: torch.dtype, backward: bool, operands: list[torch.Tensor]
) -> torch.Tensor:
    """The value that a product of a pass reads, of the weight's shape, by narrowcast::dequantize.
    Of a view the rows that it lies in are decoded. `operands`: the plain ones of that product, so
    that no graph moves the decoding into another pass (docs/decisions/0017).
    """
    store, view = weight._store, weight._view
    store.refresh()  # outside of traces, where autograd does not decompose F.linear
    usage = store.product_usage(backward)
    decoding = casting.decoding(store.graph_key, store.bytes, dtype, usage, operands)
    if not view.is_whole:
        return ops.dequantize(*decoding, weight.shape, weight.stride(), view.first)
    value = ops.dequantize(*decoding)
    return value if value.shape == weight.shape else value.reshape(weight.shape)


compiling.leave_alone(weight_value)  # which C++ calls


# ---- shapes ----

# Kernels for meta tensors, which traces ask too. torch.library.register_fake would enter the same,
# and look through the files of all loaded modules for the place of each: a tenth of a second.
_META = torch.library.Library("narrowcast", "IMPL", "Meta")


def matrix_of(format: str, usage: int, data: torch.Tensor) -> tuple[int, int]:
    """The rows and columns of a matrix from the data of a usage."""
    layout = getattr(registry.format(format), USAGES[usage])
    outer, inner = data.shape[0], data.shape[1] * 8 // layout.element_bits
    return (inner, outer) if layout.transposed else (outer, inner)


def buffer_shape(facts: registry.Format, buffer: int, rows, columns) -> tuple:
    """facts.buffer_shape, also of sizes that a trace has not decided upon."""
    if isinstance(rows, int) and isinstance(columns, int):
        return facts.buffer_shape(buffer, rows, columns)
    layout = facts.columnwise if buffer in buffers_of("columnwise") else facts.rowwise
    if buffer not in SCALES:
        outer, inner = (columns, rows) if layout.transposed else (rows, columns)
        return outer, inner * layout.element_bits // 8
    if layout.block == "tensor":
        return (1,)
    (per_rows, per_columns), pads = layout.scale_per, layout.scale_pad
    scales = -(-rows // per_rows), -(-columns // per_columns)
    if layout.scale_transposed:
        scales = scales[::-1]
    return tuple(-(-size // pad) * pad for size, pad in zip(scales, pads, strict=True))


def _cast(value, format, rowwise, columnwise):
    facts = registry.format(format)
    usages = itertools.compress(USAGES, (rowwise, columnwise))
    made = [
        value.new_empty(buffer_shape(facts, buffer, *value.shape), dtype=facts.buffer_dtype(buffer))
        for usage in usages
        for buffer in buffers_of(usage)
    ]
    has_two_levels = facts.tensor_scale is not None  # values depend on the amax, too
    return made + [value.new_empty(1, dtype=torch.float32)] * has_two_levels


def _dequantize(key, matrix, format, usage, dtype, operands, sizes=None, strides=None, first=0):
    if sizes is None:
        return key.new_empty(matrix, dtype=dtype)
    return key.new_empty_strided(sizes, strides, dtype=dtype)


def _scaled_mm(a, a_format, a_usage, a_over_rows, b, b_format, b_usage, b_over_rows, *rest):
    _kind, _fast, dtype, *_offsets = rest
    kept = (
        matrix_of(a_format, a_usage, a[0])[a_over_rows],
        matrix_of(b_format, b_usage, b[0])[b_over_rows],
    )
    return a[0].new_empty(kept, dtype=dtype)


def _scaled_forward(input, key, matrix, format, dtype):
    rows, _ = matrix_of(registry.format(format).matmul.input, 0, input[0])
    return input[0].new_empty((rows, matrix[0]), dtype=dtype)


def _scaled_backward(gradient, input, key, matrix, format, of_input, of_weight, dtype):
    of_the_input = [gradient.new_empty((*gradient.shape[:-1], matrix[1]))] * of_input
    return of_the_input + [gradient.new_empty(matrix, dtype=dtype)] * of_weight


_META.impl("cast", _cast)
_META.impl("scaled_backward", _scaled_backward)
_META.impl("scaled_backward.stochastic", _scaled_backward)
_META.impl("dequantize", _dequantize)
_META.impl("scaled_mm", _scaled_mm)
_META.impl("scaled_forward", _scaled_forward)


# ---- what FlopCounterMode counts: two operations for each element that is multiplied ----


def _flops_of_linear(input, weight, bias, scaled, *, out_val) -> int:
    return 2 * input.numel() * weight.shape[0]


def _flops_of_scaled_mm(a, a_format, a_usage, a_over_rows, *_, out_val) -> int:
    return 2 * out_val.numel() * matrix_of(a_format, a_usage, a[0])[not a_over_rows]


def _flops_of_scaled_forward(input, key, matrix, format, *_, out_val) -> int:
    return 2 * out_val.numel() * matrix[1]


def _flops_of_scaled_backward(gradient, input, key, matrix, format, *_, out_val) -> int:
    return 2 * gradient.numel() * matrix[1] * len(out_val)


@functools.cache
def register_flops() -> None:
    """Enters the formulas: not at the import, for torch's module of them takes 0.1 seconds."""
    from torch.utils.flop_counter import register_flop_formula

    register_flop_formula(ops.linear, get_raw=True)(_flops_of_linear)
    register_flop_formula(ops.scaled_mm, get_raw=True)(_flops_of_scaled_mm)
    register_flop_formula(ops.scaled_forward, get_raw=True)(_flops_of_scaled_forward)
    register_flop_formula(ops.scaled_backward, get_raw=True)(_flops_of_scaled_backward)
