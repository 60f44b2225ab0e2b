"""A QuantizedTensor as plain tensors and facts, and back: for pickling and torch.compile."""

from __future__ import annotations

import torch

from narrowcast import registry
from narrowcast.box import matrix_shape
from narrowcast.matrix import Matrix
from narrowcast.spanning import SPANNING

# The tensors, as attributes of a QuantizedTensor. torch reads them by these names.
TENSORS = (
    *("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"),
    *(*SPANNING, "master"),
)


def parts_of(tensor) -> tuple:
    """The arguments of narrowcast.tensor.rebuild: format, shape, dtype, the tensors (None where
    absent), name, recompute, partial, and the rows and columns that a flat view keeps.
    """
    matrix, tensors = tensor._matrix, [getattr(tensor, name) for name in TENSORS]
    partial = matrix.partial or not tensor._view.is_whole
    facts = matrix.format.name, tuple(tensor.shape), tensor.dtype
    flattened = tensor._view.box.shape if tensor.is_flat else None
    return *facts, tensors, matrix.name, matrix.recompute, partial, flattened


def flatten(tensor) -> tuple[list[str], tuple]:
    """The names of the tensors that are there, and the rest, as __tensor_flatten__ returns them."""
    format, _, dtype, tensors, *options = parts_of(tensor)
    present = [name for name, part in zip(TENSORS, tensors, strict=True) if part is not None]
    awaited = tensor._matrix.filled != set(tensor._matrix.usages)
    return present, (awaited, format, dtype, *options)


def unflatten(inner: dict[str, torch.Tensor], context, shape) -> tuple[Matrix, torch.dtype]:
    """The matrix and the logical dtype of what flatten() made, over other tensors."""
    awaited, format, dtype, *options = context
    matrix = matrix_of(format, shape, [inner.get(name) for name in TENSORS], *options)
    matrix.awaited = awaited
    return matrix, dtype


def matrix_of(
    format: str,
    shape: tuple[int, ...],
    tensors: list[torch.Tensor | None],
    name: str | None,
    recompute: bool,
    partial: bool,
    flattened: tuple[int, int] | None,
) -> Matrix:
    """The matrix of a tensor's parts."""
    count = len(registry.BUFFERS)
    buffers, spanning, master = tensors[:count], tensors[count:-1], tensors[-1]
    rows, columns = flattened or matrix_shape(shape)
    if master is not None:
        master = master.reshape(rows, columns).contiguous()
    matrix = Matrix(registry.format(format), rows, columns, buffers, *spanning, master=master)
    matrix.name, matrix.recompute, matrix.partial = name, recompute, partial
    return matrix
