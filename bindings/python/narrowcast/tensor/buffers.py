"""The bytes of a matrix as tensors: memory for them, the entries of a region, copies. Functions
over _C.Buffers, which checks what it is made of and never changes.
"""

from collections.abc import Sequence

import torch

from narrowcast._C import Buffers
from narrowcast.registry import BUFFERS, Format
from narrowcast.tensor.region import Region

allocate = Buffers.allocate  # (format, rows, columns, usages, device): undefined, padding zero


def full_region(bytes: Buffers) -> Region:
    return Region(0, bytes.rows, 0, bytes.columns)


def tensors_of(bytes: Buffers) -> list[torch.Tensor | None]:
    """All that it consists of: the buffers, amax and history."""
    return [*bytes.buffers, bytes.amax, bytes.history]


def corner(shape) -> tuple[slice, ...]:
    """The index of the first entries along each dimension."""
    return tuple(slice(n) for n in shape)


def mapped(bytes: Buffers, function) -> Buffers:
    """The same matrix with function(tensor) for each tensor: in other memory."""
    new = [None if one is None else function(one) for one in tensors_of(bytes)]
    return Buffers(bytes.format, bytes.rows, bytes.columns, new[:4], *new[4:])


def fill_with_zeros(bytes: Buffers) -> None:
    """The bytes of zeros: a float32 scale of zeros is 1, and only padding is 0."""
    for buffer, tensor in enumerate(bytes.buffers):
        if tensor is None:
            continue
        tensor.zero_()
        if tensor.dtype == torch.float32:
            used = bytes.format.used_shape(buffer, bytes.rows, bytes.columns)
            tensor[corner(used)] = 1.0


# ---- regions ----


def piece(bytes: Buffers, buffer: int, region: Region) -> torch.Tensor:
    """The entries of a region: a view that writes through; of the whole with the padding."""
    tensor, format = bytes.buffer(buffer), bytes.format
    if region == full_region(bytes) or (region.is_empty and format.is_spanning(buffer)):
        return tensor
    if region.is_empty:
        return tensor.new_empty(format.used_shape(buffer, *region.shape))
    for dimension, (first, count) in enumerate(format.stored_box(buffer, region)):
        tensor = tensor.narrow(dimension, first, count)
    return tensor


def kept_usages(format: Format, usages: Sequence[str]) -> Sequence[str]:
    """Those that a shard keeps of some: its derived columnwise bytes would never be gathered."""
    derived = format.columnwise_derived and "rowwise" in usages
    return ("rowwise",) if derived else usages


def copy_region(target: Buffers, region: Region, source: Buffers, source_region: Region) -> None:
    """Copies a region of another matrix in the usages of both: all but scales of the tensor."""
    for buffer in BUFFERS:
        if target.buffer(buffer) is None or source.buffer(buffer) is None:
            continue
        if target.format.is_spanning(buffer):
            continue
        there, here = piece(target, buffer, region), piece(source, buffer, source_region)
        # One of them may be a whole buffer, with its padding.
        used = corner(map(min, there.shape, here.shape))
        there[used] = here[used]


# ---- what spans the tensor ----


def spanning_of(bytes: Buffers) -> list[torch.Tensor | None]:
    """What belongs to the whole tensor: scales that span it, amax and history."""
    scales = [bytes.buffer(buffer) for buffer in BUFFERS if bytes.format.is_spanning(buffer)]
    return [*scales, bytes.amax, bytes.history]


def copy_spanning(target: Buffers, source: Buffers) -> None:
    """Copies what belongs to the whole tensor."""
    for there, here in zip(spanning_of(target), spanning_of(source), strict=True):
        if there is not None and here is not None:
            there.copy_(here)


def have_one_scale(one: Buffers, other: Buffers) -> bool:
    """Whether one scale of the whole tensor, or the amax that it comes from, decodes both; yes in
    formats without.
    """
    pairs = zip(spanning_of(one)[:-1], spanning_of(other)[:-1], strict=True)
    mine, theirs = next((pair for pair in pairs if None not in pair), (None, None))
    return mine is None or mine.is_meta or torch.equal(mine, theirs.to(mine.device))
