"""Which elements of which weight each rank owns: exchanged once, before the first cast."""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast import ranks
from narrowcast.flat.shards import Shard, line
from narrowcast.ranks import DisagreementError

_WAY_OUT = (
    "Every rank raises this error, and nothing has changed. Hand in the same weights in the same "
    "order on all ranks, and shards that meet: each element is one rank's"
)


def group_or_all(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group; all ranks if it is None, this process alone where there are no others. ValueError
    on a rank that is no member.
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"this rank is no member of the process group: {group!r} stands for it")
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def exchange(shards: list[Shard], group: dist.ProcessGroup | None) -> list[list[tuple[int, int]]]:
    """Collective: ranges[rank][weight], of all ranks. DisagreementError on all ranks if they hand
    in different weights; ValueError, on all, unless each element is one rank's.
    """
    own = [(line(one.store), one.begin, one.end) for one in shards]
    device = shards[0].store.bytes.device if shards else torch.device("cpu")
    every = ranks.of_all(own, group, device)
    _check_alike([[line for line, *_ in of_rank] for of_rank in every])
    ranges = [[(begin, end) for _, begin, end in of_rank] for of_rank in every]
    for place, shard in enumerate(shards):
        _check_covered(place, shard, [of_rank[place] for of_rank in ranges])
    return ranges


def _check_alike(lines: list[list[str]]) -> None:
    for rank, of_rank in enumerate(lines):
        if len(of_rank) != len(lines[0]):
            raise DisagreementError(
                f"rank 0 hands in {len(lines[0])} weights, rank {rank} {len(of_rank)}. {_WAY_OUT}"
            )
        for place, (one, other) in enumerate(zip(lines[0], of_rank, strict=True)):
            if one != other:
                raise DisagreementError(
                    f"weight {place} is {one} on rank 0 and {other} on rank {rank}. {_WAY_OUT}"
                )


def _check_covered(place: int, shard: Shard, ranges: list[tuple[int, int]]) -> None:
    """ValueError unless the ranges cover the weight once."""
    at, before = 0, None
    elements = shard.store.rows * shard.store.columns
    owned = sorted((begin, end, rank) for rank, (begin, end) in enumerate(ranges) if begin < end)
    for begin, end, rank in [*owned, (elements, elements, None)]:
        if begin > at:
            raise ValueError(
                f"weight {place}, a {shard.store.describe()}: no rank owns elements {at} to "
                f"{begin}. {_WAY_OUT}"
            )
        if begin < at:
            raise ValueError(
                f"weight {place}, a {shard.store.describe()}: ranks {before} and {rank} both own "
                f"elements {begin} to {min(at, end)}. {_WAY_OUT}"
            )
        at, before = end, rank
