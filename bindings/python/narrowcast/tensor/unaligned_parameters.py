"""Shards that share blocks with those of other ranks, made as fully_shard makes shards: a blank of
the first one's size, a part of it as large as the own shard, and a copy of the own rows into that.
"""

from __future__ import annotations

import torch

from narrowcast.tensor import buffers
from narrowcast.tensor.master import Master
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned_shard import Place


def rows_of(store: Store, region: Region) -> Store:
    """The shard of a whole matrix that has these rows, a copy."""
    return shard_of(store, store.straddle._replace(rank=region.row // store.straddle.shard_rows))


def shard_of(store: Store, place: Place) -> Store:
    """The same of a place."""
    shard = _room(store, place, store.bytes.device)
    held = Region(place.first, place.held, 0, store.columns)
    buffers.copy_region(shard.bytes, buffers.whole_of(shard.bytes), store.bytes, held)
    buffers.copy_spanning(shard.bytes, store.bytes)
    if shard.master is not None:
        shard.master.value.copy_(store.master.value[place.row : place.end])
    return shard


def without_rows(store: Store) -> Store:
    """The shard of a rank that owns nothing of what a blank is for."""
    place = store.straddle
    return _zeros(store, place._replace(rank=-(-place.rows // place.shard_rows)))


def blank(store: Store, rows: int, device: torch.device) -> Store:
    """Zeros, of so many rows, for a shard like a store or of it."""
    like = store.straddle or store.place
    held = -(-rows // like.step) * like.step
    zeros = _zeros(store, Place(0, 1, rows, held, like.step), device)
    zeros.straddle, zeros.used = like, 0
    return zeros


def room_like(store: Store, device: torch.device) -> Store:
    """Undefined bytes of the same place, and a master if the shard has one."""
    return _room(store, store.place, device)


def is_blank(store: Store) -> bool:
    return store.place is not None and store.straddle is not None


def _zeros(store: Store, place: Place, device: torch.device | None = None) -> Store:
    zeros = _room(store, place, device or store.bytes.device)
    buffers.fill_with_zeros(zeros.bytes)
    buffers.copy_spanning(zeros.bytes, store.bytes)
    if zeros.master is not None:
        zeros.master.value.zero_()
    return zeros


def _room(store: Store, place: Place, device: torch.device) -> Store:
    """Undefined bytes, in the usages that a shard keeps."""
    usages = buffers.kept_usages(store.format, store.bytes.usages)
    bytes = buffers.allocate(store.format, place.held, store.columns, usages, device)
    master = None
    if store.master is not None:
        rows = place.end - place.row
        master = Master(torch.empty(rows, store.columns, device=device, dtype=torch.float32))
    return Store(bytes, master, store.label, place)
