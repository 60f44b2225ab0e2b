"""nc.fits: whether weights can be cut over a number of ranks. The rule is fsdp.sharding's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import islice

import torch.distributed as dist
from torch import nn

from narrowcast import registry
from narrowcast.conversion import selection
from narrowcast.fsdp import sharding
from narrowcast.tensor import dtensors
from narrowcast.tensor.region import matrix_shape

_SHOWN = 3  # weights in a message


@dataclasses.dataclass(frozen=True)
class Fit:
    """What nc.fits finds; true if all can be cut.

    ranks    the number that was asked about
    shared   names of the weights whose cuts divide blocks. Ranks share scales of these, which takes
             a small reduction a step and a slower gather
    reasons  name -> the reason, for each weight that cannot be cut or stored
    nearest  the nearest numbers of ranks, below and above, over which all weights can be cut
    """

    ranks: int
    reasons: dict[str, str]
    nearest: tuple[int, ...]
    shared: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self:
            shared = f"; shards share blocks of {_some(self.shared)}" if self.shared else ""
            return f"can be cut over {self.ranks} ranks{shared}"
        lines = _some([f"{name}: {reason}" for name, reason in self.reasons.items()], "; ")
        others = f". Ranks that do: {' or '.join(map(str, self.nearest))}" if self.nearest else ""
        return f"cannot be cut over {self.ranks} ranks: {lines}{others}"


def _some(lines: Sequence[str], between: str = ", ") -> str:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return between.join([*lines[:_SHOWN], *more])


def fits(
    what: nn.Module | Sequence[int],
    format: str | registry.Format,
    ranks,
    *,
    filter: selection.Filter = selection.default_filter,
    parameters: selection.Parameters = None,
) -> Fit:
    """Whether fully_shard can cut weights in a format over a number of ranks.

    what    the shape of a weight, or a model: every weight that nc.convert would take with the same
            filter and parameters
    format  a name (nc.formats()) or nc.format(name)
    ranks   a number, or the DeviceMesh that fully_shard gets

    Returns a Fit, which is true or false: with the reasons, the weights whose shards share blocks,
    and the nearest numbers of ranks that would do. ValueError: the format is not loaded, the number
    is below 1, the shape is empty, or nc.convert would refuse the choice.
    """
    format = registry.format(format)
    if isinstance(what, nn.Module):
        weights = storable(*selection.choose(what, filter, parameters), format)
        shapes = {name: tuple(parameter.shape) for name, parameter, _ in weights}
    else:
        shape = tuple(map(int, what))
        if not shape or min(shape) < 1:
            raise ValueError(f"a weight's shape is of positive numbers, not {shape}")
        shapes = {"x".join(map(str, shape)): shape}
    return _fit(format, shapes, _shards(ranks))


def storable(
    weights: list[selection.Weight], by_default: set[str], format: registry.Format
) -> list[selection.Weight]:
    """Without those that the default chooses and a format cannot hold, such as gates of one row.
    All of them if nothing would be left.
    """
    held = [
        (name, weight, places)
        for name, weight, places in weights
        if name not in by_default or not storage_problem(format, weight.shape)
    ]
    return held or weights


def foresee(weights: list[selection.Weight], format: registry.Format, mesh) -> None:
    """Before a conversion: ValueError if what is not sharded yet cannot be cut over a mesh that the
    user has named.
    """
    if mesh is None:
        return
    whole = [one for one in weights if not isinstance(one[1], dtensors.DTensor)]
    fit = _fit(format, {name: tuple(weight.shape) for name, weight, _ in whole}, _shards(mesh))
    if not fit:
        raise ValueError(
            f"weights in {format.name} {fit}; or leave them out with nc.convert's filter"
        )


def _shards(ranks) -> int:
    """The number of shards: FSDP2 cuts over the last dimension of its mesh."""
    if isinstance(ranks, dist.DeviceMesh):
        return ranks.size(ranks.ndim - 1)
    if ranks < 1:
        raise ValueError(f"there is at least 1 rank, not {ranks}")
    return ranks


def _fit(format: registry.Format, shapes: dict[str, tuple], ranks: int) -> Fit:
    reasons = {
        name: reason
        for name, shape in shapes.items()
        if (reason := storage_problem(format, shape) or sharding.why_not(format, shape, ranks))
    }
    if not reasons:
        shared = (name for name, one in shapes.items() if sharding.divides(format, one, ranks))
        return Fit(ranks, reasons, (), tuple(shared))
    distinct = {*shapes.values()}
    if any(storage_problem(format, shape) for shape in distinct):
        return Fit(ranks, reasons, ())
    most = max(shape[0] for shape in distinct)  # more ranks than rows: as many do as with all rows

    def all_fit(number: int) -> bool:
        return not any(sharding.why_not(format, shape, number) for shape in distinct)

    below = filter(all_fit, range(ranks - 1, 0, -1))
    above = filter(all_fit, range(ranks + 1, most + 1))
    return Fit(ranks, reasons, (*islice(below, 1), *islice(above, 1)))


def storage_problem(format: registry.Format, shape: tuple) -> str | None:
    """Why a format cannot hold a weight at all; None if it can."""
    try:
        for usage in registry.USAGES:
            format.check_holds(usage, *matrix_shape(shape))
    except ValueError as error:
        return str(error)
    return None
