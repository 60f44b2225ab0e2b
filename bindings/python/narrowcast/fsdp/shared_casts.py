"""Casts of shards that share blocks with those of other ranks: what cuts divide is reduced."""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.tensor import casting
from narrowcast.tensor.store import Store
from narrowcast.zero.exchange import Exchange
from narrowcast.zero.shards import Shard

_NEAREST = 0, 0, 0  # a draw that nobody reads
_LEFT_ALONE = -1.0  # a verdict


class SharedCasts:
    """Of the ranks of a process group. `stores`: with masters and places, those of one format
    together, all of the same part of tensor parallelism.
    """

    def __init__(self, stores: list[Store], group: dist.ProcessGroup):
        self._stores = stores
        shards = [*map(shard_of, stores)]
        consequence = "every rank raises this error"
        every = ranges_of(stores)
        self._exchange = Exchange(shards, every, group, "a cast of shards", consequence)
        self._casts = [_C.FlatCast(part.shards) for part in self._exchange.parts]

    def collect(self) -> None:
        """Finds what ranks tell each other."""
        self._exchange.begin()
        for part, casts in zip(self._exchange.parts, self._casts, strict=True):
            stores = [self._stores[place] for place in part.places]
            values = [store.master.value.view(-1) if store.rows else None for store in stores]
            draws = [_drawn(store) for store in stores]
            if all(draw is _NEAREST for draw in draws):
                draws = None
            casts.collect(values, part.amaxes, self._exchange.floats, False, draws)

    def reduce(self) -> None:
        """Collective, if cuts divide anything."""
        if self._exchange.is_collective:
            casting.reduce_over(self._exchange.memory, self._exchange.group)

    def cast(self, verdicts: torch.Tensor) -> None:
        """Makes the bytes, to nearest, but where a verdict is negative. `verdicts`: float32, one
        a store, on its device.
        """
        for part, casts in zip(self._exchange.parts, self._casts, strict=True):
            self._finish(part, casts, verdicts[part.places[0] : part.places[-1] + 1], False)

    def cast_saved(self, place: int) -> None:
        """Makes those of one store as a saved state has them."""
        store = self._stores[place]
        for part, casts in zip(self._exchange.parts, self._casts, strict=True):
            if place in part.places:
                verdicts = torch.full(
                    (len(part.places),), _LEFT_ALONE, dtype=torch.float32, device="cpu"
                )
                verdicts[part.places.index(place)] = 0
                drawn = store.master.saved.draw is not None
                self._finish(part, casts, verdicts.to(store.bytes.device), drawn)

    def _finish(self, part, casts, verdicts: torch.Tensor, stochastic: bool) -> None:
        floats = self._exchange.floats
        casts.finish(part.amaxes, floats, floats[:1], False, stochastic, verdicts)


class OwnStores:
    """In the place of a narrowcast.zero Weights: stores of the parameters themselves, of which an
    AdamTable sees what becomes of them.
    """

    def __init__(self, stores: list[Store]):
        self._stores = stores

    def stores(self) -> list[Store]:
        return self._stores

    present = stores

    def note_writes(self) -> None:
        """A step does."""


def shard_of(store: Store) -> Shard:
    """Of the flattened whole."""
    if store.rows == 0:
        return Shard(store, 0, 0, None)
    return Shard(store, *store.place.own(store.columns), store.master.value.view(-1))


def ranges_of(stores: list[Store]) -> list[list[tuple[int, int]]]:
    """What each rank owns of each whole."""
    return [*map(list, zip(*(one.place.ranges(one.columns) for one in stores), strict=True))]


def _drawn(store: Store) -> tuple[int, int, int]:
    saved = store.master.saved
    if not store.is_stale or saved is None or saved.draw is None:
        return _NEAREST
    return saved.draw.seed, saved.draw.step, store.place.origin
