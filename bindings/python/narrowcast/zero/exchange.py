"""What the owners of flat shards tell each other in one reduction, by maxima of int32."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.consensus import DisagreementError
from narrowcast.heard import Heard
from narrowcast.registry import Format
from narrowcast.tensor import casting
from narrowcast.tensor.store import Store
from narrowcast.zero.shards import Shard

Ranges = list[list[tuple[int, int]]]


class Part(NamedTuple):
    """The shards of one format. `places`: in the list of all; `amaxes`: of their tensors, float32
    in the exchange; None where no scale spans the tensor.
    """

    format: Format
    places: list[int]
    shards: _C.FlatShards
    amaxes: torch.Tensor | None


class Longest:
    """Of the reductions of a process group: on all ranks the same."""

    def __init__(self):
        self.integers = 0


class Exchange:
    """In its order: a flag; `extra` integers of the user's; amaxes of tensors; amaxes of blocks and
    values of elements that cuts divide, of one format after another. All of it is filled with what
    a rank says that has nothing to say, before others add to it. The flag is 0; rank + 1 of a rank
    that has failed; as much and the number of ranks of one that makes a first call with others.
    Parts of tensor parallelism have amaxes of tensors in common, and what their cuts divide beside
    each other.

    `what` failed, in messages, and what that means; `header`: the flag and what is extra, int32.
    `longest`: of exchanges that must understand each other, whose reductions are all as long.
    """

    @torch.inference_mode(False)  # a first call may be there, and later ones not
    def __init__(
        self,
        shards: list[Shard],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        what: str,
        consequence: str,
        extra: int = 0,
        longest: Longest | None = None,
    ):
        self.ranges = ranges
        self._what, self._consequence, self._longest = what, consequence, longest
        self.group = group if group is not None and dist.get_world_size(group) > 1 else None
        self.device = shards[0].store.bytes.device
        places: dict[Format, list[int]] = defaultdict(list)
        for place, shard in enumerate(shards):
            places[shard.store.format].append(place)
        spans = sum(len(some) for format, some in places.items() if format.tensor_amax)
        self._sizes = [1 + extra, spans]
        silence, self._flats = [torch.zeros(1 + extra + spans, dtype=torch.int32)], []
        ((part, parts),) = {shard.part for shard in shards}
        for some in places.values():
            own = [shards[place] for place in some]
            cuts = [[of_rank[place][0] for of_rank in ranges] for place in some]
            rooms = [_room(own, cuts, None if one == part else one) for one in range(parts)]
            flat = _flat(own, cuts, sum(map(len, [*silence, *rooms[:part]])))
            self._flats.append((own[0].store.format, some, flat))
            silence += rooms
        self._lay_out(torch.cat(silence).to(self.device))
        self.is_collective = self.group is not None and len(self.memory) > 1 + extra
        self._is_unheard = False

    def _lay_out(self, silence: torch.Tensor) -> None:
        """What is reduced, and its parts."""
        self.silence, self.memory = silence, silence.clone()
        self._silent_floats = silence.view(torch.float32)
        rest = len(silence) - sum(self._sizes)
        self.header, amaxes, _ = self.memory.split([*self._sizes, rest])
        self.floats, amaxes = self.memory.view(torch.float32), amaxes.view(torch.float32)
        self.parts: list[Part] = []
        for format, some, flat in self._flats:
            count = len(some) if format.tensor_amax else 0
            own, amaxes = amaxes[:count], amaxes[count:]
            self.parts.append(Part(format, some, flat, own if count else None))
        self.heard = Heard(self.header)

    def is_current(self, stores: list[Store]) -> bool:
        """Whether these, of the weights, have their bytes where launches write."""
        return all(
            part.shards.are_of([stores[place].bytes for place in part.places])
            for part in self.parts
        )

    def begin(self) -> None:
        missing = 0 if self._longest is None else self._longest.integers - len(self.memory)
        if missing > 0:
            with torch.inference_mode(False):
                self._lay_out(torch.cat([self.silence, self.silence.new_zeros(missing)]))
        _C.copy_floats(self.floats, self._silent_floats)
        self._is_unheard = self.is_collective

    def abandon(self) -> None:
        """What has begun is not reduced."""
        self._is_unheard = False

    def hear(self) -> list[int]:
        """The header of the last reduction, if nobody has heard it. DisagreementError if a rank
        failed in it.
        """
        if not self._is_unheard:
            return []
        self._is_unheard = False
        header = self.heard.read()
        if header[0]:
            raise self._failure(header[0])
        return header

    def will_hear(self, flag: int) -> bool:
        """In the place of this reduction there was another, in which a rank has failed: whether the
        others hear of it in their next one, as this rank does then.
        """
        if self.heard.is_at_once:
            return False
        self.heard.pretend([flag, *[0] * (len(self.header) - 1)])
        self._is_unheard = True
        return True

    def _failure(self, flag: int) -> DisagreementError:
        ranks = dist.get_world_size(self.group)
        if flag <= ranks:
            return DisagreementError(
                f"{self._what} failed on rank {flag - 1} of the group, which says why; "
                f"{self._consequence}"
            )
        return DisagreementError(
            f"rank {flag - 1 - ranks} of the group hands in weights for the first time, and this "
            f"rank others, in {self._what}; {self._consequence}"
        )

    def withdraw(self) -> None:
        """In the place of a reduction, on a rank that cannot take part: has the others fail."""
        if not self.is_collective:
            return
        try:
            self.hear()
        except DisagreementError:  # of an earlier failure, which the others hear of now: they do
            return  # not come to a reduction
        self.begin()
        self.memory[0] = dist.get_rank(self.group) + 1
        casting.reduce_over(self.memory, self.group)
        self.heard.fetch()
        # Others hear of it now, or before the next reduction, and so does this rank then; now its
        # own error is the one to raise.
        self._is_unheard = not self.heard.is_at_once


def _flat(own: list[Shard], cuts: list[list[int]], first_slot: int) -> _C.FlatShards:
    begins, ends = [shard.begin for shard in own], [shard.end for shard in own]
    matrices, places = zip(*((shard.store.bytes, shard.of_whole) for shard in own), strict=True)
    return _C.FlatShards(matrices, begins, ends, cuts, first_slot, places)


def _room(own: list[Shard], cuts: list[list[int]], part: int | None) -> torch.Tensor:
    """The slots of what cuts divide of weights; `part`: of another part than this rank's."""
    flat = _flat(own, cuts, 0)
    if part is None:
        return flat.initial()
    return flat.initial_of(*zip(*(one.of_part(part) for one in own), strict=True))
