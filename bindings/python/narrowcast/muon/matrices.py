"""The matrices of a parameter, as Muon orthogonalizes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from narrowcast.muon import newton_schulz
from narrowcast.optimizer.parameters import Entry
from narrowcast.tensor import dtensors

# A learning rate's factor for a matrix of some rows and columns, as in torch.optim.Muon.
ADJUSTMENTS = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}

Split = Callable[[str, torch.Tensor], Sequence[int] | int | None]


class Matrix:
    """A parameter of two dimensions, or of three: a batch of matrices, as of experts.

    entry    the parameter, with its state
    group    its options
    is_cut   whether ranks have rows of the same matrix. Then `shares` says how many each rank has
    device   of its local part
    parts    the rows of each part of a matrix that is orthogonalized alone
    cost     of the orthogonalization, for all ranks alike

    NotImplementedError if a rank has neither rows of a matrix nor whole ones; ValueError if a split
    does not fit.
    """

    def __init__(self, entry: Entry, group: dict, split: Split | None):
        self.entry, self.group = entry, group
        parameter = entry.parameter
        *_, self.rows, self.columns = parameter.shape
        local = dtensors.local_of(parameter)
        self.device = local.device
        self.is_cut = parameter.dim() == 2 and dtensors.is_cut(parameter)
        pieces = dtensors.parts_of(parameter)
        self.shares = [shape[0] for shape in pieces.shapes]
        if local.shape[1:] != parameter.shape[1:] or (self.is_cut and not _by_one_cut(parameter)):
            raise NotImplementedError(
                f"{entry.name}: Muon needs whole matrices, and gathers rows that one dimension of "
                f"a mesh has cut, as fully_shard does; this one, {tuple(parameter.shape)}, has "
                f"placements {parameter.placements}. Have another rule update it (filter=)"
            )
        self.parts = _parts(split(entry.name, parameter) if split else None, self)
        batch = 1 if parameter.dim() == 2 else parameter.shape[0]
        self.cost = batch * sum(newton_schulz.cost(rows, self.columns) for rows in self.parts)

    @property
    def factor(self) -> float:
        """Of the learning rate: the largest of the parts'."""
        return max(self._factors)

    @property
    def _factors(self) -> list[float]:
        adjust = ADJUSTMENTS[self.group["adjust_lr_fn"] or "original"]
        return [adjust(rows, self.columns) for rows in self.parts]

    def orthogonalize(self, momentum: torch.Tensor) -> torch.Tensor:
        """Of a whole momentum in bfloat16 [..., rows, columns], whose memory it uses: contiguous,
        of the same shape. Slices and parts come one after another, because products of batches
        have other bits for other numbers of slices, so for other numbers of ranks.
        """
        if momentum.dim() == 3:
            for one in momentum:
                one.copy_(self.orthogonalize(one))
            return momentum
        options = [self.group[key] for key in ("ns_coefficients", "ns_steps", "eps")]
        made = [newton_schulz.orthogonalize(one, *options) for one in momentum.split(self.parts)]
        largest = self.factor
        for one, factor in zip(made, self._factors, strict=True):
            if factor != largest:
                one.mul_(factor / largest)
        return made[0].contiguous() if len(made) == 1 else torch.cat(made)


def _by_one_cut(parameter: torch.Tensor) -> bool:
    """Whether the cut is FSDP2's of rows, in the order of ranks."""
    cuts = dtensors.cuts(parameter)
    return len(cuts) == 1 and parameter.placements[cuts[0]].is_shard(0)


def _parts(given: Sequence[int] | int | None, matrix: Matrix) -> list[int]:
    """The rows of each part that a split gives."""
    if given is None:
        return [matrix.rows]
    try:
        parts = [matrix.rows // given] * given if isinstance(given, int) else [*map(int, given)]
    except (TypeError, ValueError, ZeroDivisionError):
        parts = []
    if min(parts, default=0) < 1 or sum(parts) != matrix.rows:
        raise ValueError(
            f"{matrix.entry.name}: split= gives {given!r}, and this matrix has {matrix.rows} rows: "
            "give a number that divides them, or the rows of each part"
        )
    return parts
