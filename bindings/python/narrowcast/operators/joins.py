"""cat: pieces of one format side by side in one matrix, where each ends between blocks."""

import torch

from narrowcast.operators.common import bound, first_quantized, refuse
from narrowcast.registry import USAGES
from narrowcast.tensor import QuantizedTensor, buffers
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import copy_region

aten = torch.ops.aten
_WAY = "Join the plain tensors that dequantize() makes"


@implements(aten.stack.default)
def _stack(func, args, kwargs):
    """cat along a dimension that is new."""
    values = bound(func, args, kwargs)
    dim = values["dim"] % (values["tensors"][0].dim() + 1)
    return torch.cat([one.unsqueeze(dim) for one in values["tensors"]], dim)


@implements(aten.cat.default)
def _cat(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensors, first = values["tensors"], first_quantized(values["tensors"])
    if flat := [one for one in tensors if isinstance(one, QuantizedTensor) and one.is_flat]:
        refuse(
            flat,
            func,
            "of flat views (view(-1), as FullyShardedDataParallel and parameters_to_vector take of "
            f"each parameter) would mix blocks of several matrices. {_WAY}, or use fully_shard",
        )
    for index, one in enumerate(tensors):
        other = one.format.name if isinstance(one, QuantizedTensor) else "plain"
        if other != first.format.name:
            refuse(first, func, f"needs pieces of one format, and piece {index} is {other}. {_WAY}")
    plain = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in tensors]
    like = torch.cat(plain, values["dim"])
    dim = values["dim"] % like.dim()
    by_columns = dim == like.dim() - 1
    if not by_columns and like.shape[:dim].numel() != 1:
        refuse(first, func, f"along dimension {dim} would mix the rows of the pieces. {_WAY}")
    pieces = [one._view.placed() for one in tensors if one.numel()] or [first._view.placed()]
    return QuantizedTensor(_joined(func, first, pieces, like, by_columns), like.shape, like.dtype)


def _check_joint(joined: Store, at: int, by_columns: bool) -> None:
    """ValueError if a piece would begin within a block."""
    what, step = ("row", "column")[by_columns], joined.step[by_columns]
    if at % step != 0:
        raise ValueError(
            f"a piece would begin at {what} {at}, and blocks of {joined.format.name} begin at "
            f"multiples of {step}: let each piece but the last have a multiple of {step} {what}s, "
            f"or join the plain tensors that dequantize() makes"
        )


def _joined(func, first, pieces, like, by_columns: bool) -> Store:
    usages = [u for u in USAGES if all(store.bytes.has(u) for store, _ in pieces)]
    if not usages:
        refuse(first, func, "of pieces without a common usage. Quantize them with the same")
    joined = pieces[0][0].new_empty(*matrix_shape(like.shape), usages, first.device)
    if any(store.master is None for store, _ in pieces):
        joined.drop_master()
    row = column = 0
    for store, taken in pieces:
        store.refresh()
        place = Region(row, taken.rows, column, taken.columns)
        _check_joint(joined, place.column if by_columns else place.row, by_columns)
        if not buffers.have_one_scale(pieces[0][0].bytes, store.bytes):
            refuse(first, func, f"needs pieces with one tensor-wide scale. {_WAY}")
        copy_region(joined, place, store, taken)
        row, column = (0, place.column_end) if by_columns else (place.row_end, 0)
    return joined
