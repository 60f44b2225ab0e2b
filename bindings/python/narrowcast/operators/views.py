"""Views: the same bytes under another shape, or a box of them. One handler serves all: torch says
which elements a view takes, and the geometry whether they are bytes of their own.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map_only

from narrowcast import box
from narrowcast.dispatch import implements
from narrowcast.operators import rules, table
from narrowcast.operators.common import refuse, refuse_flat
from narrowcast.pieces import check_cut
from narrowcast.tensor import QuantizedTensor


@implements(*table.ALIAS.operators)
def _alias(func, args, kwargs):
    return args[0].alias()


@implements(
    *(*table.CUT.operators, *table.SHAPE.operators, *table.TRANSPOSE.operators),
    *table.NO_BOX.operators,
)
def view(func, args, kwargs):
    """Asks torch for the view of a plain tensor of the same strides, and finds it in the matrix."""
    tensor, *rest = args
    matrix = tensor._matrix
    plain = torch.empty(matrix.rows * matrix.columns, dtype=tensor.dtype, device="meta")
    strides = box.strides(tensor.shape, tensor._view.exchanged, matrix.columns)
    views = func(plain.as_strided(tensor.shape, strides, tensor._view.first), *rest, **kwargs)
    return tree_map_only(torch.Tensor, lambda like: _taken(func, tensor, like), views)


def _taken(func, tensor: QuantizedTensor, like: torch.Tensor) -> QuantizedTensor:
    """The view that takes the elements that `like` takes. Refused if they are no box of whole
    blocks.
    """
    matrix, shape = tensor._matrix, tuple(like.shape)
    if tensor.is_flat and like.numel() != tensor.numel():
        refuse_flat(tensor, func)
    found = None
    if like.dtype == tensor.dtype:
        place = like.stride(), like.storage_offset()
        found = box.find(shape, *place, matrix.rows, matrix.columns)
    if found is None:
        return refuse(tensor, func, _no_box(tensor, shape))
    taken, exchanged = found
    if exchanged:
        rules.transposition(matrix.format).require(tensor, func)
    if not taken.is_empty:
        check_cut(matrix, taken)
    return QuantizedTensor(matrix, shape, tensor.dtype, taken, exchanged)


def _no_box(tensor: QuantizedTensor, shape) -> str:
    return (
        f"to {shape} would not take some whole rows or columns in their order, so it would divide "
        "or change blocks. Leading dimensions can be split and joined (the last one stays "
        f"{tensor.shape[-1]}), rows and columns sliced, and view(-1) is a flat view. For another "
        "shape use dequantize()"
    )
