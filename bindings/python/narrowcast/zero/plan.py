"""The casts of flat shards, and the one reduction that they may need: made once from what all ranks
own, run at every step.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.consensus import DisagreementError
from narrowcast.registry import Format
from narrowcast.tensor import casting
from narrowcast.tensor.master import Draw
from narrowcast.zero.shards import Shard

Ranges = list[list[tuple[int, int]]]


class _Casts:
    """Those of one format. `places`: in the lists of the call; `first_slot`: in the exchange."""

    def __init__(
        self, shards: list[Shard], places: list[int], ranges: Ranges, first_slot: int
    ) -> None:
        own = [shards[place] for place in places]
        self.format, self.places = own[0].store.format, places
        self.matrices = [shard.store.bytes for shard in own]
        begins, ends = [shard.begin for shard in own], [shard.end for shard in own]
        cuts = [[of_rank[place][0] for of_rank in ranges] for place in places]
        self.flat = _C.FlatCast(self.matrices, begins, ends, cuts, first_slot)


class Plan:
    """What the ranks reduce, by maxima of int32: who has failed, 0 or his rank + 1; amaxes of
    tensors; amaxes of blocks and values of elements that cuts divide. `own`: this rank's part;
    `shared`: that of all.
    """

    def __init__(self, shards: list[Shard], ranges: Ranges, group: dist.ProcessGroup | None):
        self.shards, self.ranges = shards, ranges
        self.group = group if group is not None and dist.get_world_size(group) > 1 else None
        self.device = shards[0].store.bytes.device
        places: dict[Format, list[int]] = defaultdict(list)
        for place, shard in enumerate(shards):
            places[shard.store.format].append(place)
        spans = sum(len(some) for format, some in places.items() if format.tensor_amax)
        slots, at = [torch.zeros(1 + spans, dtype=torch.int32)], 1 + spans
        self._casts: list[_Casts] = []
        for some in places.values():
            self._casts.append(_Casts(shards, some, ranges, at))
            slots.append(self._casts[-1].flat.initial())
            at += len(slots[-1])
        self.own = torch.cat(slots).to(self.device)
        self._tensor_amaxes = self.own[1 : 1 + spans]
        self.is_collective = self.group is not None and at > 1
        self.shared = self.own.clone() if self.is_collective else self.own
        self._heard: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def is_of(self, shards: list[Shard]) -> bool:
        """Whether these are the shards that it was made for."""
        return len(shards) == len(self.shards) and all(
            one.store is other.store and (one.begin, one.end) == (other.begin, other.end)
            for one, other in zip(shards, self.shards, strict=True)
        )

    def has_current_bytes(self) -> bool:
        """Whether the weights' buffers are those that it casts into."""
        return all(
            self.shards[place].store.bytes.buffer(0).data_ptr() == matrix.buffer(0).data_ptr()
            for one in self._casts
            for place, matrix in zip(one.places, one.matrices, strict=True)
        )

    def hear(self) -> None:
        """DisagreementError if another rank failed in the last call, which nobody waited for."""
        if self._heard is None:
            return
        flag, copied = self._heard
        self._heard = None
        copied.synchronize()
        self._check(int(flag))

    def withdraw(self) -> None:
        """In the place of a cast, on a rank that cannot make it: has the others fail too."""
        if self.is_collective:
            self.shared.copy_(self.own)
            self.shared[0] = dist.get_rank(self.group) + 1
            casting.reduce_over(self.shared, self.group)

    def run(self, masters: list, source_bf16: bool, draws: list[Draw] | None) -> None:
        """Makes the bytes of all shards; collective where cuts divide what ranks then share."""
        self._tensor_amaxes.zero_()
        self._each("collect", self.own, masters, source_bf16, draws)
        if self.is_collective:
            self.shared.copy_(self.own)
            casting.reduce_over(self.shared, self.group)
            self._listen()
        self._each("finish", self.shared, masters, source_bf16, draws)

    def _each(self, step: str, exchange: torch.Tensor, masters, source_bf16, draws) -> None:
        floats, at = exchange.view(torch.float32), 1
        for one in self._casts:
            amaxes = None
            if one.format.tensor_amax:
                amaxes = floats[at : at + len(one.places)]
                at += len(one.places)
            if step == "collect":
                own = [masters[place] for place in one.places]
                drawn = None if draws is None else [draws[place] for place in one.places]
                one.flat.collect(own, amaxes, floats, source_bf16, drawn)
            else:
                one.flat.finish(amaxes, floats, floats[:1], source_bf16, draws is not None)

    def _listen(self) -> None:
        """On the CPU at once; a GPU says so when it is asked next."""
        if self.device.type == "cpu":
            self._check(int(self.shared[0]))
            return
        flag = torch.empty(1, dtype=torch.int32, pin_memory=True)
        flag.copy_(self.shared[:1], non_blocking=True)
        self._heard = flag, torch.cuda.current_stream(self.device).record_event()

    def _check(self, failed: int) -> None:
        if failed != 0:
            raise DisagreementError(
                f"quantize_master_weights failed on rank {failed - 1} of the group, which says "
                "why; no rank has changed its weights. Every rank raises this error"
            )
