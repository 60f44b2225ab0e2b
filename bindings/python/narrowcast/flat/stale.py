"""Casts of all weights that were written: before the next gather of a forward, or the next step.
Those whose cast needs what other ranks have (the amax of a tensor, or blocks that cuts divide) are
cast together, with one reduction for each process group.

Which shards are stale each rank knows by itself: every rank runs the same program. The exception is
a rank whose shard has no rows, where a load writes nothing: the others' words say whether to cast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

import torch
import torch.distributed as dist

from narrowcast.flat.exchange import Exchange
from narrowcast.flat.shards import FlatShard, Ranges
from narrowcast.ranks import Reduction
from narrowcast.tensor import casting, scale_groups, unaligned
from narrowcast.tensor.casting import SKIP, TAKE
from narrowcast.tensor.store import Store

Group = dist.ProcessGroup | None


def cast(shards: Iterable[tuple[Store, Group]]) -> None:
    """Makes the bytes of stale matrices from their masters, and of those that share a scale with
    one. Each has the process group whose ranks have the other shards of its tensor. Collective if a
    cast needs those; no host waits. ValueError if a stale one shares a scale with what is absent.
    """
    shards = [*shards]
    taken = set(scale_groups.stale_of([store for store, _ in shards]))
    stale = [(store, group) for store, group in shards if store in taken]
    casting.cast_masters([store for store, _ in stale if not _waits(store)])
    for casts in casts_by_group((store, group) for store, group in stale if _waits(store)):
        casts.run()


def casts_by_group(shards: Iterable[tuple[Store, Group]]) -> list[ShardCasts]:
    """Casts of shards that wait for others, one for each process group and, where ranks share
    blocks, for each part of tensor parallelism.
    """
    alike: dict[tuple, list[Store]] = defaultdict(list)
    for store, group in shards:
        shard = unaligned.shard_of(store)
        alike[group, shard and (shard.part, shard.parts)].append(store)
    return [
        (ShardCasts if part is None else UnalignedCasts)(stores, group)
        for (group, part), stores in alike.items()
    ]


def _waits(store: Store) -> bool:
    """Whether a cast needs what others have; one on meta makes nothing."""
    return store.needs_others and store.bytes.is_plain


class ShardCasts:
    """Casts of shards with masters, on one device, with one reduction: whether any rank has written
    to a shard, and amaxes of tensors.
    """

    @torch.inference_mode(False)  # later casts may be outside of it
    def __init__(self, stores: list[Store], group: Group):
        self._stores = sorted(stores, key=lambda store: store.format.name)
        self._reduction = self._make(group)
        self._skips = self._reduction.floats[: len(stores)]

    def _make(self, group: Group) -> Reduction:
        count = len(self._stores)
        identity = torch.tensor([SKIP] * count + [0.0] * count, dtype=torch.float32, device="cpu")
        device = self._stores[0].bytes.device
        reduction = Reduction(identity.view(torch.int32).to(device), group)
        skips, amaxes = reduction.floats.split(count)
        self._casts, at = [], 0
        for _, some in groupby(self._stores, key=lambda store: store.format):
            same = [*some]
            of_format = slice(at, at + len(same))
            peers = scale_groups.peers_of(same)
            casts = casting.casts_of(same)
            self._casts.append((casts, peers, amaxes[of_format], skips[of_format]))
            at += len(same)
        return reduction

    def run(self) -> None:
        """Makes the bytes of the shards that are stale, on this rank or, of one without rows, on
        others.
        """
        stale = scale_groups.stale_of(self._stores)
        self._reduction.begin()
        if stale:
            taken = set(stale)
            skips = [TAKE if store in taken else SKIP for store in self._stores]
            self._skips.copy_(torch.tensor(skips, dtype=torch.float32, device="cpu"))
        takes_part = bool(stale) or any(store.rows == 0 for store in self._stores)
        if takes_part:
            self._collect()
        self._reduction.reduce()
        if takes_part:
            self._cast()
        for store in stale:
            store.mark_fresh(by_nearest=True)

    def _collect(self) -> None:
        for casts, _, amaxes, _ in self._casts:
            casts.find_amaxes(into=amaxes)

    def _cast(self) -> None:
        for casts, peers, amaxes, skips in self._casts:
            scale_groups.share(peers, amaxes)
            casts.cast(amaxes, skip=skips)


class UnalignedCasts(ShardCasts):
    """Those of shards that share blocks, whose reduction has what cuts divide, too."""

    def _make(self, group: Group) -> Exchange:
        shards = [flat_shard_of(store) for store in self._stores]
        return Exchange(shards, ranges_of(self._stores), group, [SKIP] * len(shards))

    def _collect(self) -> None:
        self._reduction.collect([flat_shard_of(one).master for one in self._stores])

    def _cast(self) -> None:
        self._reduction.finish()


def flat_shard_of(store: Store) -> FlatShard:
    """A shard that shares blocks, as one of the flattened whole."""
    if store.rows == 0:
        return FlatShard(store, 0, 0, None)
    return FlatShard(store, *store.shard.elements(store.columns), store.master.view(-1))


def ranges_of(stores: list[Store]) -> Ranges:
    """What each rank owns of each whole."""
    return [*map(list, zip(*(one.shard.ranges(one.columns) for one in stores), strict=True))]
