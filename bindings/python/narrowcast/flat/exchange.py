"""What the owners of flat shards reduce: amaxes of tensors, and amaxes and values of blocks that
cuts divide.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.shards import Shard
from narrowcast.ranks import Reduction
from narrowcast.registry import Format
from narrowcast.tensor.store import Store

Ranges = list[list[tuple[int, int]]]


class Part(NamedTuple):
    """The shards of one format. `places`: in the list of all; `amaxes`: of their tensors, float32
    [places] among the reduced words; None where no scale spans the tensor.
    """

    format: Format
    places: list[int]
    shards: _C.FlatShards
    amaxes: torch.Tensor | None


class Exchange(Reduction):
    """Its words, in order: `extra`, the user's; amaxes of tensors; of one format after another,
    amaxes of blocks and values of elements that cuts divide. Parts of tensor parallelism have the
    amaxes of tensors in common, and the rest beside each other.

    extra   int32 on the CPU: the identity of the user's words. Without others they are reduced if
            `reduces_extra`
    header  int32 [len(extra)], on the device
    """

    @torch.inference_mode(False)  # a first call may be there, and later ones not
    def __init__(
        self,
        shards: list[Shard],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        extra: torch.Tensor | None = None,
        reduces_extra: bool = False,
    ):
        self.ranges, self.device = ranges, shards[0].store.bytes.device
        places: dict[Format, list[int]] = defaultdict(list)
        for place, shard in enumerate(shards):
            places[shard.store.format].append(place)
        spans = sum(len(some) for format, some in places.items() if format.tensor_amax)
        header = 0 if extra is None else len(extra)
        identity = [] if extra is None else [extra]
        identity.append(torch.zeros(spans, dtype=torch.int32))
        flats, ((part, parts),) = [], {shard.part for shard in shards}
        for some in places.values():
            own = [shards[place] for place in some]
            cuts = [[of_rank[place][0] for of_rank in ranges] for place in some]
            rooms = [_room(own, cuts, None if one == part else one) for one in range(parts)]
            flat = _flat(own, cuts, sum(map(len, [*identity, *rooms[:part]])))
            flats.append((own[0].store.format, some, flat))
            identity += rooms
        whole = torch.cat(identity)
        super().__init__(
            whole.to(self.device), group if reduces_extra or len(whole) > header else None
        )
        self.header = self.words[:header]
        amaxes = self.floats[header : header + spans]
        self.parts: list[Part] = []
        for format, some, flat in flats:
            count = len(some) if format.tensor_amax else 0
            own, amaxes = amaxes[:count], amaxes[count:]
            self.parts.append(Part(format, some, flat, own if count else None))

    def is_current(self, stores: list[Store]) -> bool:
        """Whether these, of the weights, have their bytes where launches write."""
        return all(
            part.shards.are_of([stores[place].bytes for place in part.places])
            for part in self.parts
        )


def _flat(own: list[Shard], cuts: list[list[int]], first_slot: int) -> _C.FlatShards:
    begins, ends = [shard.begin for shard in own], [shard.end for shard in own]
    matrices, places = zip(*((shard.store.bytes, shard.row_span) for shard in own), strict=True)
    return _C.FlatShards(matrices, begins, ends, cuts, first_slot, places)


def _room(own: list[Shard], cuts: list[list[int]], part: int | None) -> torch.Tensor:
    """The slots of what cuts divide of weights; `part`: of another part than this rank's."""
    flat = _flat(own, cuts, 0)
    if part is None:
        return flat.identity()
    return flat.identity_of(*zip(*(one.of_part(part) for one in own), strict=True))
