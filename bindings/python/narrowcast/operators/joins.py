"""cat: pieces of one format side by side in one matrix, where each ends between blocks."""

import torch

from narrowcast.operators.common import bound, first_quantized, refuse, refuse_flat
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
    refuse_flat(first, func)
    for index, one in enumerate(tensors):
        other = one.format.name if isinstance(one, QuantizedTensor) else "plain"
        if other != first.format.name:
            refuse(first, func, f"needs pieces of one format, and piece {index} is {other}. {_WAY}")
    plain = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in tensors]
    like = torch.cat(plain, values["dim"])
    pieces = [one for one in tensors if one.numel()] or tensors[:1]
    regions = _regions(func, pieces, values["dim"] % like.dim(), like)
    return _joined(func, pieces, regions, like)


def _regions(func, pieces, dim: int, like: torch.Tensor) -> list[Region]:
    """Where each piece lies in the result."""
    by_columns = dim == like.dim() - 1
    if not by_columns and like.shape[:dim].numel() != 1:
        refuse(
            pieces[0],
            func,
            f"along dimension {dim} of {tuple(like.shape)} would mix the rows of the pieces. Join "
            "along the first dimension or the last, or the plain tensors of dequantize()",
        )
    regions, row, column = [], 0, 0
    for one in pieces:
        rows, columns = matrix_shape(one.shape)
        regions.append(Region(row, rows, column, columns))
        row, column = (row, column + columns) if by_columns else (row + rows, column)
    return regions


def _joined(func, pieces, regions: list[Region], like: torch.Tensor) -> QuantizedTensor:
    sources = [one._view.placed() for one in pieces]
    for store, _ in sources:
        store.refresh()
    usages = [u for u in USAGES if all(store.bytes.has(u) for store, _ in sources)]
    if not usages:
        refuse(pieces[0], func, "of pieces without a common usage. Quantize them with the same")
    joined = sources[0][0].new_empty(*matrix_shape(like.shape), usages, pieces[0].device)
    if any(store.master is None for store, _ in sources):
        joined.drop_master()
    for index, region in enumerate(regions):
        _check_begin(joined, index, region)
        _check_scale(func, pieces[0], index, sources)
    for region, (store, piece) in zip(regions, sources, strict=True):
        copy_region(joined, region, store, piece)
    return QuantizedTensor(joined, like.shape, like.dtype)


def _check_begin(joined: Store, index: int, region: Region) -> None:
    """ValueError if a piece begins inside a block of the whole."""
    for what, begin, step in zip(
        ("row", "column"), (region.row, region.column), joined.step, strict=True
    ):
        if begin % step != 0:
            raise ValueError(
                f"{joined.describe()} cannot be joined from these pieces: piece {index} would "
                f"begin at {what} {begin}, and blocks of {joined.format.name} begin at multiples "
                f"of {step} {what}s. Let each piece but the last have a multiple of {step} "
                f"{what}s, or join the plain tensors that dequantize() makes"
            )


def _check_scale(func, first: QuantizedTensor, index: int, sources) -> None:
    """Refused unless pieces have one tensor-wide scale, as one tensor has."""
    one, other = (sources[at][0].bytes for at in (0, index))
    if not buffers.have_one_scale(one, other):
        earlier = ", and a delayed scale follows from earlier ones" if one.format.is_delayed else ""
        refuse(
            first,
            func,
            f"needs pieces with one tensor-wide scale: the amax of piece 0 is {one.amax.item():g}, "
            f"that of piece {index} is {other.amax.item():g}{earlier}. {_WAY}",
        )
