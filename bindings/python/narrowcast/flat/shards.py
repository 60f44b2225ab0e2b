"""What a caller hands in: weights, the master shards of this rank, and where they begin. Which
elements the other ranks own is exchanged once.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C, ranks
from narrowcast.registry import USAGES
from narrowcast.tensor import QuantizedTensor, unaligned
from narrowcast.tensor.store import Store

Ranges = list[list[tuple[int, int]]]  # of each rank, of each weight: begin and end


class FlatShard(NamedTuple):
    """This rank's elements `begin` to `end` of a weight, row by row; `master`: their values,
    float32 [end - begin]; None, and begin == end, where it owns nothing.
    """

    store: Store
    begin: int
    end: int
    master: torch.Tensor | None

    @property
    def extent(self) -> tuple[int, int, int]:
        """Of the rows whose bytes are here the first; how many rows the whole has; the index of its
        first element in the weight, where tensor parallelism has cut that into several wholes.
        """
        shard = unaligned.shard_of(self.store)
        if shard is None:
            return 0, self.store.bytes.rows, 0
        return shard.stored_begin, shard.rows, shard.first

    @property
    def part(self) -> tuple[int, int]:
        """Which part of tensor parallelism the weight is, and of how many."""
        shard = unaligned.shard_of(self.store)
        return (0, 1) if shard is None else (shard.part, shard.parts)


def line(store: Store) -> str:
    """What all ranks must have alike of a weight."""
    usages = store.bytes.usages if store.pending is None else USAGES
    return (
        f"{store.describe()} ({store.format.identity}, {' and '.join(usages)}, "
        f"{store.config.matmul} products)"
    )


def read(
    weights: Sequence[torch.Tensor],
    masters: Sequence[torch.Tensor | None],
    starts: Sequence[int | None],
) -> list[FlatShard]:
    """TypeError or ValueError, with the place in the lists, for what is no weight or no master."""
    return [
        _shard(f"weight {place}", *of_weight)
        for place, of_weight in enumerate(zip(weights, masters, starts, strict=True))
    ]


def _shard(what: str, weight, master, start) -> FlatShard:
    store = checked_store(what, weight)
    if store.master is not None:
        raise ValueError(
            f"{what}, a {store.describe()}, keeps a master of its own: drop it with "
            "weight.clear_high_precision_init_val()"
        )
    if master is None or master.numel() == 0:
        return FlatShard(store, 0, 0, None)
    if master.dtype != torch.float32:
        raise TypeError(f"{what}: its master shard is {master.dtype}; float32 is needed")
    _C.check_there(master, f"{what}: its master shard")
    run = master.detach().resolve_neg().reshape(-1).contiguous()
    begin = operator.index(start)
    return FlatShard(store, begin, begin + run.numel(), run)


def checked_store(what: str, weight) -> Store:
    """Of a whole weight with rowwise bytes. TypeError or ValueError about `what`, if it is none."""
    if not isinstance(weight, QuantizedTensor):
        raise TypeError(
            f"{what} is a {type(weight).__name__}, not a QuantizedTensor: make it with nc.quantize"
        )
    store, view = weight._store, weight._view
    if not view.is_whole or view.exchanged:
        raise ValueError(f"{what} is a view of a {store.describe()}: hand in the whole weight")
    if not store.bytes.has("rowwise"):
        raise ValueError(
            f"{what}, a {store.describe()}, has columnwise bytes alone: shards have rowwise ones"
        )
    return store


def group_or_all(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group; all ranks if it is None, this process alone where there are no others."""
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def exchange_ranges(shards: list[FlatShard], group: dist.ProcessGroup | None) -> Ranges:
    """What all ranks own. Collective, and the host waits: DisagreementError on all ranks if they
    hand in different weights.
    """
    device = shards[0].store.bytes.device
    ranks.same("a list of flat shards", [(group, device, line(one.store)) for one in shards])
    return ranks.gather_objects([(one.begin, one.end) for one in shards], group, device)
