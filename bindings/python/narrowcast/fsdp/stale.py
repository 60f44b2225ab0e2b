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
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.exchange import Exchange
from narrowcast.flat.shards import FlatShard, Ranges
from narrowcast.ranks import Reduction
from narrowcast.tensor import buffers, casting, dtensors, scale_groups, unaligned
from narrowcast.tensor.casting import SKIP, TAKE
from narrowcast.tensor.store import Store


class Shard(NamedTuple):
    """group     the process group whose ranks have the other shards of its tensor
    is_asked  some rank has no rows of it, or of a weight that shares its scale, and its cast needs
              other ranks: every cast asks all of them
    """

    store: Store
    group: dist.ProcessGroup | None
    is_asked: bool


def shards_of(weights: Iterable[tuple[torch.Tensor, Store]]) -> list[Shard]:
    """Of parameters, which may be DTensors, each with its store."""
    weights = [*weights]
    asked = {
        store
        for parameter, store in weights
        if _waits(store) and dtensors.leaves_any_empty(parameter)
    }
    sharing = {store.config.scale_group for store in asked} - {None}
    return [
        Shard(
            store,
            dtensors.shard_group(parameter),
            store in asked or store.config.scale_group in sharing,
        )
        for parameter, store in weights
    ]


def cast(shards: Iterable[Shard]) -> None:
    """Makes the bytes of stale matrices from their masters, and of those that share a scale with
    one. Collective if a cast needs other ranks; no host waits. ValueError if a stale one shares a
    scale with what is absent.
    """
    shards = [*shards]
    taken = set(scale_groups.stale_of([one.store for one in shards]))
    alone, together, frozen = [], defaultdict(list), defaultdict(list)
    for store, group, is_asked in shards:
        if not _waits(store):
            alone += [store] * (store in taken)
        elif store.master is not None and (is_asked or store in taken):
            shard = unaligned.shard_of(store)
            together[group, shard and (shard.part, shard.parts)].append(store)
        elif is_asked and store.format.tensor_amax:
            frozen[group].append(store)
    casting.cast_masters(alone)
    for (group, part), stores in together.items():
        _cast_together(stores, group, _AlignedCasts if part is None else _UnalignedCasts)
    for group, stores in frozen.items():
        _take_over_scales(stores, group)


def _waits(store: Store) -> bool:
    """Whether a cast needs what others have; one on meta makes nothing."""
    return store.needs_others and store.bytes.is_plain


def _cast_together(stores: list[Store], group, kind: type) -> None:
    """Makes the bytes of those that are stale on this rank or, of one without rows, on others."""
    stores = sorted(stores, key=lambda store: store.format.name)
    taken = set(scale_groups.stale_of(stores))
    casts = kind(stores, group, [TAKE if store in taken else SKIP for store in stores])
    takes_part = bool(taken) or any(store.rows == 0 for store in stores)
    if takes_part:
        casts.collect()
    casts.reduce()
    if takes_part:
        casts.finish()
    for store in taken:
        store.mark_fresh(by_nearest=True)


class _AlignedCasts(Reduction):
    """Casts of matrices on one device, in the order of their formats. Its words: SKIP or TAKE of
    each, and the amax of its tensor.
    """

    def __init__(self, stores: list[Store], group, skips: list[float]):
        own = torch.tensor([*skips, *[0.0] * len(stores)], dtype=torch.float32, device="cpu")
        super().__init__(own.view(torch.int32).to(stores[0].bytes.device), group)
        skipped, amaxes = self.floats.split(len(stores))
        self._formats, at = [], 0
        for _, some in groupby(stores, key=lambda store: store.format):
            same = [*some]
            places = slice(at, at + len(same))
            casts, peers = casting.casts_of(same), scale_groups.peers_of(same)
            self._formats.append((casts, peers, amaxes[places], skipped[places]))
            at += len(same)

    def collect(self) -> None:
        for casts, _, amaxes, _ in self._formats:
            casts.find_amaxes(into=amaxes)

    def finish(self) -> None:
        for casts, peers, amaxes, skips in self._formats:
            scale_groups.share(peers, amaxes)
            casts.cast(amaxes, skip=skips)


class _UnalignedCasts(Exchange):
    """The same of shards that share blocks, whose reduction has what cuts divide, too."""

    def __init__(self, stores: list[Store], group, skips: list[float]):
        self._flat = [*map(flat_shard_of, stores)]
        super().__init__(self._flat, ranges_of(stores), group, skips)

    def collect(self) -> None:
        super().collect([one.master for one in self._flat])


def flat_shard_of(store: Store) -> FlatShard:
    """A shard that shares blocks, as one of the flattened whole."""
    if store.rows == 0:
        return FlatShard(store, 0, 0, None)
    return FlatShard(store, *store.shard.elements(store.columns), store.master.view(-1))


def ranges_of(stores: list[Store]) -> Ranges:
    """What each rank owns of each whole."""
    return [*map(list, zip(*(one.shard.ranges(one.columns) for one in stores), strict=True))]


def _take_over_scales(stores: list[Store], group) -> None:
    """Gives a rank without rows what spans frozen weights, which have no masters to cast from: the
    bytes' maxima over all ranks.
    """
    spanning = [
        (one.view(-1).view(torch.uint8), store.rows == 0)
        for store in stores
        for one in buffers.spanning_of(store.bytes)
        if one is not None
    ]
    own = [torch.zeros_like(one) if is_empty else one for one, is_empty in spanning]
    reduction = Reduction(torch.cat(own).to(torch.int32), group)
    reduction.reduce()
    _C.note_write()
    every = reduction.words.split([*map(len, own)])
    for (one, is_empty), words in zip(spanning, every, strict=True):
        if is_empty:
            # A graph that has saved it for its backward shall have the present one.
            with torch.autograd._unsafe_preserve_version_counter(one):
                one.copy_(words)
