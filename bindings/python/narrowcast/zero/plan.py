"""The casts of flat shards, and the one reduction that they may need: made once from what all ranks
own, run at every step.
"""

from __future__ import annotations

import weakref

import torch.distributed as dist

from narrowcast import _C
from narrowcast.tensor import casting
from narrowcast.tensor.master import Draw
from narrowcast.zero.exchange import Exchange, Ranges
from narrowcast.zero.shards import Shard

_UNCHANGED = "no rank has changed its weights. Every rank raises this error"
# Their codes need no amax of others, and are made in the pass that finds the amaxes.
_DELAYED = (
    "no rank has changed its scales, but shards with delayed scaling may have been cast with them. "
    "Every rank raises this error"
)


class Plan:
    """Of the weights that are handed in together; it keeps neither them nor their masters."""

    def __init__(self, shards: list[Shard], ranges: Ranges, group: dist.ProcessGroup | None):
        self.ranges, self.group = ranges, group
        self._shards = [(weakref.ref(one.store), one.begin, one.end) for one in shards]
        delayed = any(shard.store.format.is_delayed for shard in shards)
        consequence = _DELAYED if delayed else _UNCHANGED
        self.exchange = Exchange(shards, ranges, group, "quantize_master_weights", consequence)
        self._casts = [_C.FlatCast(part.shards) for part in self.exchange.parts]

    def is_of(self, shards: list[Shard]) -> bool:
        """Whether these are the shards that it was made for."""
        return len(shards) == len(self._shards) and all(
            one.store is store() and (one.begin, one.end) == (begin, end)
            for one, (store, begin, end) in zip(shards, self._shards, strict=True)
        )

    def collect(self, masters: list, source_bf16: bool, draws: list[Draw] | None) -> None:
        """Finds what ranks tell each other."""
        exchange = self.exchange
        exchange.begin()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            own = [masters[place] for place in part.places]
            drawn = None if draws is None else [draws[place] for place in part.places]
            casts.collect(own, part.amaxes, exchange.floats, source_bf16, drawn)

    def finish(self, source_bf16: bool, stochastic: bool) -> None:
        """Makes the bytes of all shards; collective where cuts divide what ranks then share."""
        exchange = self.exchange
        if exchange.is_collective:
            casting.reduce_over(exchange.memory, exchange.group)
            exchange.listen()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            stop = exchange.floats[:1]
            casts.finish(part.amaxes, exchange.floats, stop, source_bf16, stochastic)
