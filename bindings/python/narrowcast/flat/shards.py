"""What a caller hands in: weights, the master shards of this rank, and where they begin; checked
before anything changes. Which elements the other ranks own is exchanged once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence, Sized
from contextlib import suppress
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C, ranks
from narrowcast.ranks import DisagreementError
from narrowcast.registry import USAGES
from narrowcast.tensor import QuantizedTensor, unaligned
from narrowcast.tensor.store import Store

_WAY_OUT = (
    "Every rank raises this error, and nothing has changed. Hand in the same weights in the same "
    "order on all ranks, and shards that cover each weight once: each element is one rank's"
)


class Shard(NamedTuple):
    """This rank's elements `begin` to `end` of a weight, row by row; `master`: their values,
    float32 [end - begin]; None, and begin == end, where it owns nothing.
    """

    store: Store
    begin: int
    end: int
    master: torch.Tensor | None

    @property
    def row_span(self) -> tuple[int, int]:
        """Of the rows whose bytes are here the first, and how many the whole weight has."""
        shard = unaligned.shard_of(self.store)
        if shard is None:
            return 0, self.store.bytes.rows
        return shard.stored_begin, shard.rows

    @property
    def part(self) -> tuple[int, int]:
        """Which part of tensor parallelism the weight is, and of how many."""
        shard = unaligned.shard_of(self.store)
        return (0, 1) if shard is None else (shard.part, shard.parts)

    def of_part(self, part: int) -> tuple[tuple[int, int], list[int]]:
        """Of another part: its rows and columns, and where the shard of each rank begins in it."""
        shard = self.store.shard
        return shard.shapes[part], [begin for begin, _ in shard.ranges_of_part(part)]

    @property
    def origin(self) -> int:
        """Of the weight's first element, where it is such a part."""
        shard = unaligned.shard_of(self.store)
        return 0 if shard is None else shard.origin


def kind(store: Store) -> str:
    """What a weight is to the owners of its shards."""
    usages = store.bytes.usages if store.pending is None else USAGES
    return (
        f"a {store.rows}x{store.columns} matrix in {store.format.name} "
        f"({store.format.identity}, {' and '.join(usages)})"
    )


def line(store: Store) -> str:
    """What all ranks must have alike of a weight."""
    facts = f"{kind(store)}, {store.config.matmul} products"
    return f"{store.config.name}, {facts}" if store.config.name else facts


def read(
    what: str,
    weights: Sequence[torch.Tensor],
    masters: Sequence[torch.Tensor | None],
    starts: Sequence[int | None],
) -> list[Shard]:
    """`what`: the call, in messages. TypeError or ValueError, with the place in the lists, if
    something is not as it must be.
    """
    for name, given in (("weights", weights), ("master shards", masters), ("offsets", starts)):
        check_list(what, name, given)
    if not len(weights) == len(masters) == len(starts):
        raise ValueError(
            f"{what} got {len(weights)} weights, {len(masters)} master shards and "
            f"{len(starts)} offsets: one of each for every weight, None where this rank owns "
            "nothing"
        )
    shards = [
        _shard(f"weight {place}", weight, master, start)
        for place, (weight, master, start) in enumerate(zip(weights, masters, starts, strict=True))
    ]
    devices = {shard.store.bytes.device for shard in shards}
    if len(devices) > 1:
        raise ValueError(
            f"the weights are on {' and '.join(sorted(map(str, devices)))}: call {what} once for "
            "each device"
        )
    if len({id(shard.store) for shard in shards}) < len(shards):
        raise ValueError("a weight is in the list twice: each has one master shard on a rank")
    return shards


def check_list(what: str, name: str, given) -> None:
    """TypeError unless it is a list of some kind."""
    if not is_list(given):
        raise TypeError(
            f"{what} got a {type(given).__name__} as its {name}: it takes lists, with one of each "
            "for every weight"
        )


def is_list(given) -> bool:
    """Also a tuple, a ParameterList; but no tensor and no generator."""
    is_one = isinstance(given, (torch.Tensor, str))
    return isinstance(given, Sized) and isinstance(given, Iterable) and not is_one


def _shard(what: str, weight, master, start) -> Shard:
    store = store_without_master(what, weight)
    if master is None or (isinstance(master, torch.Tensor) and master.numel() == 0):
        return Shard(store, 0, 0, None)
    if not isinstance(master, torch.Tensor) or isinstance(master, QuantizedTensor):
        raise TypeError(
            f"{what}: its master shard is a {type(master).__name__}, not a torch.Tensor"
        )
    if master.dtype != torch.float32 or master.layout != torch.strided:
        raise TypeError(
            f"{what}: its master shard is {master.dtype}, {master.layout}; float32, strided, is "
            "needed"
        )
    if master.device != store.bytes.device:
        raise ValueError(
            f"{what} is on {store.bytes.device}, and its master shard on {master.device}"
        )
    start = _offset(what, start)
    elements = store.rows * store.columns
    if start < 0 or start + master.numel() > elements:
        raise ValueError(
            f"{what}: elements {start} to {start + master.numel()} are not all among the "
            f"{elements} of a {store.describe()}"
        )
    run = _C.resolved(master.detach()).reshape(-1).contiguous()
    return Shard(store, start, start + master.numel(), run)


def _offset(what: str, start) -> int:
    """Of Python's integers, numpy's and tensors of one."""
    with suppress(TypeError):
        if not isinstance(start, bool):
            return operator.index(start)
    raise TypeError(
        f"{what}: its offset is {start!r}; it is the index of the master shard's first element in "
        "the flattened weight"
    )


def store_of(what: str, weight) -> Store:
    """Of a whole weight with rowwise bytes. TypeError or ValueError about `what`, if it is none."""
    if not isinstance(weight, QuantizedTensor):
        raise TypeError(
            f"{what} is a {type(weight).__name__}, not a QuantizedTensor: make it with nc.quantize"
        )
    store, view = weight._store, weight._view
    if not view.is_whole or view.exchanged:
        raise ValueError(f"{what} is a view of a {store.describe()}: hand in the whole weight")
    if not store.bytes.is_plain:
        raise ValueError(
            f"{what}, a {store.describe()}, is on {store.bytes.device}: it has no bytes"
        )
    if not store.bytes.has("rowwise"):
        raise ValueError(
            f"{what}, a {store.describe()}, has columnwise bytes alone: shards have rowwise ones"
        )
    if store.bytes.is_freed:
        raise ValueError(
            f"{what}, a {store.describe()}, has been freed: the storage of a buffer is empty"
        )
    return store


def store_without_master(what: str, weight) -> Store:
    """As store_of(); ValueError, too, if the weight keeps a master of its own."""
    store = store_of(what, weight)
    if store.master is not None:
        raise ValueError(
            f"{what}, a {store.describe()}, keeps a master of its own, which FusedAdam updates. "
            "Where ranks own shards of masters, take it with weight.get_high_precision_init_val() "
            "and drop it with weight.clear_high_precision_init_val()"
        )
    return store


def group_or_all(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group; all ranks if it is None, this process alone where there are no others. ValueError
    on a rank that is no member.
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"this rank is no member of the process group: {group!r} stands for it")
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def exchange_ranges(
    shards: list[Shard], group: dist.ProcessGroup | None
) -> list[list[tuple[int, int]]]:
    """Collective: ranges[rank][weight], of all ranks. DisagreementError on all ranks if they hand
    in different weights; ValueError, on all, unless each element is one rank's.
    """
    own = [(line(one.store), one.begin, one.end) for one in shards]
    device = shards[0].store.bytes.device if shards else torch.device("cpu")
    every = ranks.gather_objects(own, group, device)
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
