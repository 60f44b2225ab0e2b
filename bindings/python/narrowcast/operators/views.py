"""Views: the same bytes under another shape, or a region of them. One handler serves all: torch
says which elements a view takes, and the geometry whether they are bytes of their own.
"""

import torch
from torch.utils._pytree import tree_map_only

from narrowcast.operators.common import refuse
from narrowcast.tensor import QuantizedTensor, region
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.store_copies import check_cut
from narrowcast.tensor.view import View

aten = torch.ops.aten
_TRANSPOSES = aten.t.default, aten.transpose.int, aten.permute.default


@implements(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def _alias(func, args, kwargs):
    return alias(args[0], args[0].dtype)


def alias(tensor: QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:
    """The same view, of a logical dtype."""
    return QuantizedTensor(tensor._view, tensor.shape, dtype)


@implements(
    *(aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default, aten.as_strided.default),
    *(aten.select.int, aten.unbind.int, aten.expand.default, aten.view.default),
    *(aten._unsafe_view.default, aten._reshape_alias.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, *_TRANSPOSES),
)
def _view(func, args, kwargs):
    """Asks torch for the view of a plain tensor of the same strides, and finds it in the store."""
    tensor, *rest = args
    store, view = tensor._store, tensor._view
    plain = torch.empty(store.rows * store.columns, dtype=tensor.dtype, device="meta")
    plain = plain.as_strided(tensor.shape, view.strides(tensor.shape), view.first)
    views = func(plain, *rest, **kwargs)
    return tree_map_only(torch.Tensor, lambda like: _taken(func, tensor, like), views)


def _taken(func, tensor: QuantizedTensor, like: torch.Tensor) -> QuantizedTensor:
    """The view that takes what `like` takes: a region of whole blocks, or a transposed view."""
    store, shape = tensor._store, tuple(like.shape)
    transpose = store.format.rules.transpose
    transposes = transpose.kind != "error"
    place = shape, like.stride(), like.storage_offset()
    found = region.find(*place, store.rows, store.columns)
    # A view without bytes may be made of such a one, and where a tensor's last dimension changes
    # places with another.
    moves = func in _TRANSPOSES and like.dim() > 1 and like.stride(-1) != 1
    is_read = tensor._view.place is not None or moves
    if is_read and (found is None or (found[1] and not transposes)):
        return QuantizedTensor(View(store, place=place), shape, tensor.dtype)
    if found is None:
        return refuse(
            tensor,
            func,
            f"to {shape} would not take some whole rows or columns in their order, so it would "
            "divide or change blocks. Leading dimensions can be split and joined (the last one "
            f"stays {store.columns}), rows and columns sliced, and view(-1) is a flat view, which "
            "is cut between rows. For another shape use dequantize()",
        )
    taken, exchanged = found
    if exchanged and not transposes:
        refuse(tensor, func, f"is not possible: {transpose.text}. Use dequantize()")
    if not taken.is_empty:
        check_cut(store, taken)
    return QuantizedTensor(View(store, taken, exchanged), shape, tensor.dtype)
