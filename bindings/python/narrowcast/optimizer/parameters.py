"""The parameters of an optimizer, groups one after another, each with what its table needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from narrowcast import ranks
from narrowcast.flat.fusing import index_in
from narrowcast.fsdp import sharding
from narrowcast.master.weight import MasterWeight
from narrowcast.optimizer import options, residuals
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.store import Store

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer


class Entry(NamedTuple):
    """`state`: empty before its first gradient; `group`: the index of its options; `seed`: of its
    random words; None: it needs none; `rule`: by which it is updated; `stochastic`: whether codes
    are rounded by them, not values alone.
    """

    parameter: torch.Tensor
    state: dict[str, torch.Tensor]
    name: str
    group: int
    seed: int | None
    rule: str
    stochastic: bool

    @property
    def store(self) -> Store | None:
        """Of a quantized one."""
        local = dtensors.local_of(self.parameter)
        is_quantized = isinstance(local, (QuantizedTensor, MasterWeight))
        return sharding.store_of_weight(self.parameter) if is_quantized else None

    @property
    def line(self) -> str:
        """What the optimizers of all ranks must have alike of it."""
        store = self.store
        stored = "as a plain tensor"
        if store is not None:
            stored = f"in {store.format.identity} for {store.config.matmul} products"
        rounding = "stochastic" if self.stochastic else "nearest"
        rounding += "" if self.seed is None else f" from seed {self.seed}"
        shape = "x".join(map(str, self.parameter.shape))
        kind = str(self.parameter.dtype).removeprefix("torch.")
        return (
            f"{self.name}, {shape} of {kind} {stored}, in option group {self.group}, rounded "
            f"{rounding}"
        )


def named(groups: list[dict]) -> Iterator[tuple[int, torch.Tensor, str]]:
    """Every parameter with the index of its group and what messages call it."""
    for index, group in enumerate(groups):
        names = group.get("param_names") or map(label_of, group["params"])
        for position, (parameter, name) in enumerate(zip(group["params"], names, strict=True)):
            place = f"parameter {position} of group {index} (shape {tuple(parameter.shape)})"
            yield index, parameter, name or place


def entries(optimizer: FusedOptimizer) -> list[Entry]:
    """Every parameter with what its update needs."""
    groups, found = optimizer.param_groups, []
    draws = [options.check(optimizer, group, index)[1] for index, group in enumerate(groups)]
    for group, parameter, name in named(groups):
        seed, stochastic = draws[group]
        place = index_in(optimizer.flat_updates, parameter)
        seed = (seed + (len(found) if place is None else place)) % 2**64
        if not (stochastic or residuals.is_drawn(optimizer, parameter)):
            seed = None
        state, rule = optimizer.state.get(parameter, {}), optimizer.rule_of(groups[group])
        found.append(Entry(parameter, state, name, group, seed, rule, stochastic))
    return found


def facts_of_step(optimizer: FusedOptimizer) -> list[ranks.Fact]:
    """What the debug mode compares at a step: of each parameter whether it has a gradient, whether
    it was written to, its options and its count of steps. Collective where shards are flat: a rank
    that owns nothing of a weight takes over what its first owner says.
    """
    found, of_shards = [], {}
    for entry in entries(optimizer):
        group = optimizer.param_groups[entry.group]
        constants = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        gradient = "no gradient" if entry.parameter.grad is None else "a gradient"
        written = ", written to" if entry.store is not None and entry.store.is_stale else ""
        line = f"{gradient}{written}, step {int(entry.state.get('step', 0))}, {constants}"
        of_shards[id(entry.parameter)] = line
        if index_in(optimizer.flat_updates, entry.parameter) is None:
            found.append(dtensors.fact(entry.parameter, f"{entry.line}, {line}"))
    for one in optimizer.flat_updates:
        own = [of_shards.get(id(parameter)) for parameter in one.parameters]
        every = ranks.gather_objects(own, one.group, one.device)
        for place, lines in enumerate(zip(own, *every, strict=True)):
            line = next(filter(None, lines), "no owner")
            found.append((one.group, one.device, f"weight {place} of a list, with {line}"))
    return found


def label_of(parameter: torch.Tensor) -> str | None:
    """The name that nc.convert has given a weight."""
    local = dtensors.local_of(parameter)
    return local.config.name if isinstance(local, (QuantizedTensor, MasterWeight)) else None
