"""What belongs to a whole tensor, whatever part of it a matrix is: its amax, the history of delayed
scaling, and a scale that is stored once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from narrowcast import _C
from narrowcast.box import Box
from narrowcast.registry import Format

if TYPE_CHECKING:
    from narrowcast.matrix import Matrix

# Float32 tensors beside the buffers, and their lengths by format; 0 where it has none. They go
# wherever the bytes go.
SPANNING = {
    "amax": lambda format: int(format.tensor_amax),
    "history": lambda format: _C.HISTORY_FLOATS if format.is_delayed else 0,
}


def allocate(format: Format, device) -> list[torch.Tensor | None]:
    """What SPANNING names, before any cast; None where the format has none."""
    lengths = [length_of(format) for length_of in SPANNING.values()]
    amax, history = [
        torch.zeros(length, dtype=torch.float32, device=device) if length else None
        for length in lengths
    ]
    if history is not None:
        history[:2] = 1.0  # the multipliers before any cast
    return [amax, history]


def copy(target: Matrix, source: Matrix) -> None:
    """Copies what spans the tensor, per-tensor scales among it."""
    for mine, theirs in zip(target.spanning, source.spanning, strict=True):
        if mine is not None:
            mine.copy_(theirs)
    for mine, theirs, cut in zip(target.buffers, source.buffers, target.format.cuts, strict=True):
        if cut.dimension < 0 and mine is not None and theirs is not None:
            mine.copy_(theirs)


def scale_of(matrix: Matrix) -> torch.Tensor | None:
    """What the one scale of the whole tensor is, or comes from; None in formats without."""
    for tensor, cut in zip(matrix.buffers, matrix.format.cuts, strict=True):
        if cut.dimension < 0 and tensor is not None:
            return tensor
    return matrix.amax


def have_one_scale(one: Matrix, other: Matrix) -> bool:
    """Whether one scale of the whole tensor decodes both; yes in formats without."""
    mine, theirs = scale_of(one), scale_of(other)
    return mine is None or mine.is_meta or torch.equal(mine, theirs.to(mine.device))


def is_used_beside(matrix: Matrix, box: Box) -> bool:
    """Whether a scale of the whole tensor belongs to more rows and columns than a box."""
    rest = box.row > 0 or box.row_end < matrix.used or box.columns < matrix.columns
    return matrix.format.tensor_amax and rest and not box.is_empty
