"""What distribute_tensor sends each rank of a quantized weight. torch cuts with torch.chunk, pads
the last part and scatters them; a cut within a block is an error here.
"""

import torch

from narrowcast.registry import USAGES, Format
from narrowcast.tensor import QuantizedTensor, buffers
from narrowcast.tensor.dispatch import as_torch_does
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store_copies import copy_region
from narrowcast.tensor.view import View


def cut(weight: QuantizedTensor, count: int, dim: int) -> list[QuantizedTensor]:
    """One part for each rank, along a dimension. ValueError if a cut would divide a block, or a
    rank had none.
    """
    store, dim = weight._store, dim % weight.dim()
    name, shape = store.config.name or "a weight", tuple(weight.shape)
    check_cut(name, store.format, shape, count, dim, is_made=True)
    store.refresh()  # all parts begin with bytes of one amax
    if weight.dim() == 3 and dim == 1:
        parts = rows_of_each(weight, count)
    else:
        parts = list(as_torch_does(torch.chunk, (weight, count, dim), {}))
    if parts[-1].shape != parts[0].shape:
        parts[-1]._view = ShortView(*parts[-1]._view.placed())
    return parts


class ShortView(View):
    """Of the last part, where that has fewer rows, columns or experts than the others."""

    __slots__ = ()


def rows_of_each(experts: QuantizedTensor, count: int) -> list[QuantizedTensor]:
    """Some rows of each expert: copies, for they do not lie together in the matrix."""
    chunks = (as_torch_does(torch.chunk, (expert, count), {}) for expert in experts.unbind())
    return [torch.stack(rows) for rows in zip(*chunks, strict=True)]


def padded(part: QuantizedTensor, shape: tuple[int, ...]) -> QuantizedTensor:
    """The last part with zeros behind it, as large as the others: what is scattered is of one
    size.
    """
    source, region = part._view.store, part._view.region
    store = source.new_empty(*matrix_shape(shape), source.bytes.usages, part.device)
    buffers.fill_with_zeros(store.bytes)
    if store.master is not None:
        store.master.value.zero_()
    copy_region(store, Region(0, region.rows, 0, region.columns), source, region)
    return QuantizedTensor(store, shape, part.dtype)


def check_cut(
    name: str,
    format: Format,
    shape: tuple[int, ...],
    ranks: int,
    dim: int,
    is_made: bool = False,
) -> None:
    """ValueError unless a matrix, or a stack of them, can be cut so that every rank has a part of
    whole blocks. `is_made`: its bytes are there, and what is scattered of them is blocks.
    """
    is_stack = len(shape) == 3
    kinds = ("experts",) * is_stack + ("rows", "columns")
    what, step = kinds[dim], ((1,) * is_stack + format.step(USAGES))[dim]
    part = -(-shape[dim] // ranks)
    rest, multiple = shape[dim] - part * (ranks - 1), step * ranks
    way = f"Use {-(-shape[dim] // multiple) * multiple} {what}"
    if part % step != 0:
        problem = f"a part would have {part} {what}, and each rank needs a multiple of {step}"
    elif rest <= 0:
        problem = f"the first ranks would have {part} {what}, and the last one none"
    elif is_made and rest % step != 0:
        problem = f"the last part would have {rest} {what}, no multiple of {step}"
        way = f"Call parallelize_module before nc.convert, or use{way[3:]}"
    else:
        return
    raise ValueError(
        f"{name}: {matrix_shape(shape)[0]}x{shape[-1]} matrix in {format.name} cannot be cut into "
        f"{ranks} parts: {problem}. {way}, another number of ranks, a format "
        "with smaller blocks, or leave the weight out with nc.convert's filter"
    )
