"""The casts of flat shards, and the one reduction that they may need: made once from what all ranks
own, run at every step.
"""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.consensus import DisagreementError
from narrowcast.tensor import casting
from narrowcast.tensor.master import Draw
from narrowcast.zero.exchange import Exchange, Longest, Ranges
from narrowcast.zero.shards import Shard

WHAT = "quantize_master_weights"  # in messages
_UNCHANGED = "no rank has changed its weights. Every rank raises this error"
# Integers, each with its negative: which plan of its group it is, and which call of the rank's.
_NUMBER, _CALL = 2, 2
# Their codes need no amax of others, and are made in the pass that finds the amaxes.
_DELAYED = (
    "no rank has changed its histories, but shards with delayed scaling may have been cast, with "
    "the scale that comes next. Every rank raises this error"
)


class Plan:
    """Of the weights that are handed in together; it keeps neither them nor their masters."""

    def __init__(
        self,
        shards: list[Shard],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        number: int,
        longest: Longest,
    ):
        self.ranges, self.group, self.number, self.longest = ranges, group, number, longest
        self._shards = [(weakref.ref(one.store), one.begin, one.end) for one in shards]
        delayed = any(shard.store.format.is_delayed for shard in shards)
        consequence = _DELAYED if delayed else _UNCHANGED
        self.exchange = Exchange(
            *(shards, ranges, group, WHAT, consequence), extra=_NUMBER + _CALL, longest=longest
        )
        self._said = [number, -number]
        self.exchange.silence[1 : 1 + _NUMBER] = torch.tensor(self._said, dtype=torch.int32)
        self._casts = [_C.FlatCast(part.shards) for part in self.exchange.parts]

    def is_of(self, shards: list[Shard]) -> bool:
        """Whether these are the shards that it was made for."""
        return len(shards) == len(self._shards) and all(
            one.store is store() and (one.begin, one.end) == (begin, end)
            for one, (store, begin, end) in zip(shards, self._shards, strict=True)
        )

    def collect(
        self, masters: list, source_bf16: bool, draws: list[Draw] | None, call: int | None = None
    ) -> None:
        """Finds what ranks tell each other. `call`: which it is of this rank's, if it must be the
        same of all.
        """
        exchange = self.exchange
        exchange.begin()
        if call is not None and exchange.is_collective:
            said = torch.tensor([call, -call], dtype=torch.int32, device="cpu")
            exchange.header[1 + _NUMBER :].copy_(said)
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            own = [masters[place] for place in part.places]
            drawn = None if draws is None else [draws[place] for place in part.places]
            casts.collect(own, part.amaxes, exchange.floats, source_bf16, drawn)

    def hear(self) -> None:
        """DisagreementError, on all ranks, if a rank failed in the last reduction, or some were in
        that of other weights or in another call; of which, on a GPU, this rank's then have the
        amaxes.
        """
        header = self.exchange.hear()
        if not header:
            return
        _, *said, call, negative = header
        if said != self._said:
            raise DisagreementError(
                f"{WHAT}: the ranks hand in lists of weights in different orders, and have "
                "reduced one list with another. Every rank raises this error. Call it for the same "
                "weights on all ranks, with those of this call again"
            )
        if call + negative:
            raise DisagreementError(
                f"{WHAT}: the ranks are in different calls, numbers {-negative} to {call}: one has "
                "called with other weights where the casts of the rest reduced nothing, so that "
                "they did not meet. Every rank raises this error, and so do all calls after it: "
                "the ranks' steps would be mixed. Begin again, with the same calls on all ranks"
            )

    def finish(self, source_bf16: bool, stochastic: bool) -> None:
        """Makes the bytes of all shards; collective where cuts divide what ranks then share."""
        exchange = self.exchange
        if exchange.is_collective:
            casting.reduce_over(exchange.memory, exchange.group)
            exchange.heard.listen(self.hear)
        for part, casts in zip(exchange.parts, self._casts, strict=True):
            stop = exchange.floats[:1]
            casts.finish(part.amaxes, exchange.floats, stop, source_bf16, stochastic)
