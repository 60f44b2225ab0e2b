"""Views: the same bytes under another shape, or some rows of them."""

from __future__ import annotations

import math

import torch

from narrowcast.dispatch import implements
from narrowcast.operators.common import bound, refuse, refuse_flat
from narrowcast.tensor import QuantizedTensor, matrix_shape

aten = torch.ops.aten


@implements(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def _alias(func, args, kwargs):
    return args[0].alias()


@implements(aten.view.default, aten._unsafe_view.default)
def _view(func, args, kwargs):
    tensor, sizes = args
    shape = _inferred(sizes, tensor.numel())
    columns = tensor._matrix.columns
    if matrix_shape(shape) == (tensor._rows, columns) or shape == (tensor.numel(),):
        return tensor.alias(shape)
    return refuse(
        tensor,
        func,
        f"to {shape} would change rows and columns, and with them the blocks. Leading dimensions "
        f"can be split and joined (the last one stays {columns}), and view(-1) is a flat view. "
        "For another shape use dequantize()",
    )


def _inferred(sizes, elements: int) -> tuple[int, ...]:
    """Sizes with their -1, if there is one, worked out."""
    known = math.prod(size for size in sizes if size != -1)
    return tuple(elements // max(known, 1) if size == -1 else size for size in sizes)


@implements(aten.as_strided.default)
def _as_strided(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, size = values["self"], tuple(values["size"])
    same = size == tensor.shape and tuple(values["stride"]) == tensor.stride()
    if same and not values["storage_offset"]:
        return tensor.alias()
    return refuse(
        tensor,
        func,
        f"to {size} is not the tensor itself, and its bytes have no other strides. Use "
        "dequantize()",
    )


@implements(aten.slice.Tensor)
def _slice(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, dim = values["self"], values["dim"]
    length = tensor.size(dim)
    begin, end, step = slice(values["start"], values["end"], values["step"]).indices(length)
    end = max(begin, end)
    if (begin, end, step) == (0, length, 1):
        return tensor.alias()
    if dim % tensor.dim() != 0 or step != 1:
        return refuse(
            tensor,
            func,
            "along columns, or with a step, would divide blocks. Slice rows, or use dequantize()",
        )
    return _rows(func, tensor, begin, end)


@implements(aten.split.Tensor)
def _split(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, size = values["self"], values["split_size"]
    length = tensor.size(values["dim"])
    sizes = [min(size, length - begin) for begin in range(0, length, size)] if length else [0]
    return _pieces(func, tensor, sizes, values["dim"])


@implements(aten.split_with_sizes.default)
def _split_with_sizes(func, args, kwargs):
    values = bound(func, args, kwargs)
    return _pieces(func, values["self"], values["split_sizes"], values["dim"])


def _pieces(func, tensor, sizes, dim):
    if len(sizes) == 1:
        return [tensor.alias()]
    if dim % tensor.dim() != 0:
        return refuse(tensor, func, f"along dimension {dim} would divide blocks. Split rows")
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [_rows(func, tensor, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _rows(func, tensor, begin: int, end: int) -> QuantizedTensor:
    """tensor[begin:end] along the first dimension, a view that writes through."""
    refuse_flat(tensor, func)
    if tensor.dim() < 2:
        return refuse(tensor, func, "would cut the one row that this is. Use dequantize()")
    inner = math.prod(tensor.shape[1:-1])
    first, last = tensor._begin + begin * inner, tensor._begin + end * inner
    if end > begin:
        tensor._matrix.check_cut(first)
        if last != tensor._begin + tensor._rows:
            tensor._matrix.check_cut(last)
    shape = (end - begin, *tensor.shape[1:])
    return QuantizedTensor(tensor._matrix, shape, tensor.dtype, first, last - first)
