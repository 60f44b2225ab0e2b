"""Which elements of which weight each rank owns: agreed upon once, before the first cast."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from narrowcast.consensus import DisagreementError
from narrowcast.zero.shards import Shard, line

_WAY_OUT = (
    "Every rank raises this error, and nothing has changed. Hand in the same weights in the same "
    "order on all ranks, and shards that meet: each element is one rank's"
)


def agree(
    shards: list[Shard] | None,
    error: str | None,
    group: dist.ProcessGroup | None,
    device: Any,
    what: str,
) -> list[list[tuple[int, int]]]:
    """Collective: ranges[rank][weight], of all ranks. `error`: what was wrong with the arguments of
    this rank, then `shards` is None; `what`: the call, in messages. DisagreementError on all ranks
    if one has an error, or if they hand in different weights; ValueError, on all, unless each
    element is one rank's.
    """
    own: Any = error if shards is None else [(line(s.store), s.begin, s.end) for s in shards]
    every: list[Any] = [own]
    if group is not None:
        every = [None] * dist.get_world_size(group)
        with torch.cuda.device(device if device is not None and device.type == "cuda" else -1):
            dist.all_gather_object(every, own, group=group)
    failed = [(rank, said) for rank, said in enumerate(every) if isinstance(said, str)]
    if failed:
        rank, said = failed[0]
        raise DisagreementError(f"{what} failed on rank {rank} of the group: {said} {_WAY_OUT}")
    _check_alike([[line for line, *_ in said] for said in every])
    ranges = [[(begin, end) for _, begin, end in said] for said in every]
    for place, shard in enumerate(shards or []):
        _check_covered(place, shard, [of_rank[place] for of_rank in ranges])
    return ranges


def _check_alike(lines: list[list[str]]) -> None:
    for rank, said in enumerate(lines):
        if len(said) != len(lines[0]):
            raise DisagreementError(
                f"rank 0 hands in {len(lines[0])} weights, rank {rank} {len(said)}. {_WAY_OUT}"
            )
        for place, (one, other) in enumerate(zip(lines[0], said, strict=True)):
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
