"""What distribute_tensor sends each rank of a quantized weight. torch cuts with torch.chunk and
scatters the parts; a cut within a block is an error here, and so is one into unequal parts.
"""

import torch

from narrowcast.registry import USAGES, Format
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import as_torch_does
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store_copies import copy_region


def cut(weight: QuantizedTensor, count: int, dim: int) -> list[QuantizedTensor]:
    """One part for each rank, along a dimension. ValueError if a cut would divide a block, or parts
    were not of one size, as what is scattered must be.
    """
    store, dim = weight._store, dim % weight.dim()
    name = store.config.name or "a weight"
    check_parts(name, store.format, tuple(weight.shape), count, dim, is_made=True)
    store.refresh()  # all parts begin with bytes of one amax
    if weight.dim() == 3 and dim == 1:
        return rows_of_each(weight, count)
    return list(as_torch_does(torch.chunk, (weight, count, dim), {}))


def rows_of_each(experts: QuantizedTensor, count: int) -> list[QuantizedTensor]:
    """Some rows of each expert: copies, because they do not lie together in the matrix."""
    (store, region), (number, rows, columns) = experts._view.placed(), experts.shape
    parts = []
    for own in torch.empty(rows, device="meta").chunk(count):
        begin, size = own.storage_offset(), len(own)
        part = store.new_empty(number * size, columns, store.bytes.usages, experts.device)
        for expert in range(number):
            there = Region(region.row + expert * rows + begin, size, region.column, columns)
            copy_region(part, Region(expert * size, size, 0, columns), store, there)
        parts.append(QuantizedTensor(part, (number, size, columns), experts.dtype))
    return parts


def check_parts(
    name: str,
    format: Format,
    shape: tuple[int, ...],
    ranks: int,
    dim: int,
    is_made: bool = False,
) -> None:
    """ValueError unless a matrix, or a stack of them, can be cut so that every rank has a part of
    whole blocks. `is_made`: its bytes are there, and the parts are to be of one size.
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
    elif is_made and rest != part:
        problem = f"the last part would have {rest} {what}, and the others {part}"
        way = f"Call parallelize_module, or load, before nc.convert, or use{way[3:]}"
    else:
        return
    raise ValueError(
        f"{name}: {matrix_shape(shape)[0]}x{shape[-1]} matrix in {format.name} cannot be cut into "
        f"{ranks} parts: {problem}. {way}, another number of ranks, a format "
        "with smaller blocks, or leave the weight out with nc.convert's filter"
    )
