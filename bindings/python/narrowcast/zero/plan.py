"""The casts of flat shards, and the one reduction that they may need: made once from what all ranks
own, run at every step.
"""

from __future__ import annotations

import torch.distributed as dist

from narrowcast import _C
from narrowcast.tensor import casting
from narrowcast.tensor.master import Draw
from narrowcast.zero.exchange import Exchange, Ranges
from narrowcast.zero.shards import Shard


class Plan:
    """Of the weights that are handed in together."""

    def __init__(self, shards: list[Shard], ranges: Ranges, group: dist.ProcessGroup | None):
        self.shards, self.ranges, self.group = shards, ranges, group
        consequence = "no rank has changed its weights. Every rank raises this error"
        self.exchange = Exchange(shards, ranges, group, "quantize_master_weights", consequence)
        self._casts = [_C.FlatCast(part.shards) for part in self.exchange.parts]

    def is_of(self, shards: list[Shard]) -> bool:
        """Whether these are the shards that it was made for."""
        return len(shards) == len(self.shards) and all(
            one.store is other.store and (one.begin, one.end) == (other.begin, other.end)
            for one, other in zip(shards, self.shards, strict=True)
        )

    def run(self, masters: list, source_bf16: bool, draws: list[Draw] | None) -> None:
        """Makes the bytes of all shards; collective where cuts divide what ranks then share."""
        exchange = self.exchange
        exchange.begin()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            own = [masters[place] for place in part.places]
            drawn = None if draws is None else [draws[place] for place in part.places]
            casts.collect(own, part.amaxes, exchange.floats, source_bf16, drawn)
        if exchange.is_collective:
            casting.reduce_over(exchange.memory, exchange.group)
            exchange.listen()
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            stop, stochastic = exchange.floats[:1], draws is not None
            casts.finish(part.amaxes, exchange.floats, stop, source_bf16, stochastic)
