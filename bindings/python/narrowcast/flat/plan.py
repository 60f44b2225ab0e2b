"""The casts of flat shards that are handed in together, and the one reduction that they may need:
made once from what all ranks own, run at every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.exchange import Exchange, Ranges
from narrowcast.flat.shards import Shard
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.casting import RngKey


class Plan:
    """Of the weights of a list; it keeps neither them nor their masters."""

    def __init__(self, shards: list[Shard], ranges: Ranges, group: dist.ProcessGroup | None):
        self.ranges, self.group = ranges, group
        self._shards = [(weakref.ref(one.store), one.begin, one.end) for one in shards]
        self.exchange = Exchange(shards, ranges, group)
        self._casts = [_C.FlatCast(part.shards) for part in self.exchange.parts]

    def is_of(self, shards: list[Shard]) -> bool:
        """Whether these are the shards that it was made for."""
        return len(shards) == len(self._shards) and all(
            one.store is store() and (one.begin, one.end) == (begin, end)
            for one, (store, begin, end) in zip(shards, self._shards, strict=True)
        )

    def cast(self, masters: list, source_bf16: bool, draws: list[RngKey] | None) -> None:
        """Makes the bytes of all shards; collective where cuts divide what ranks then share, or a
        scale spans a tensor.
        """
        exchange = self.exchange
        exchange.begin()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            own = [masters[place] for place in part.places]
            drawn = None if draws is None else [draws[place] for place in part.places]
            casts.collect(own, part.amaxes, exchange.floats, source_bf16, drawn)
        exchange.reduce()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            casts.finish(part.amaxes, exchange.floats, source_bf16, draws is not None)


_plans: WeakKeyDictionary = WeakKeyDictionary()  # of each weight's store


def plan_of(weight) -> Plan | None:
    """That of the list with a weight, whatever it is."""
    return _plans.get(weight._store) if isinstance(weight, QuantizedTensor) else None


def keep(weights: Sequence[torch.Tensor], plan: Plan) -> Plan:
    """The plan of a list of weights."""
    for weight in weights:
        _plans[weight._store] = plan
    return plan


def drop(plans: Iterable[Plan]) -> None:
    """The next call with their weights is a first one."""
    gone = set(plans)
    for store in [store for store, plan in _plans.items() if plan in gone]:
        del _plans[store]
